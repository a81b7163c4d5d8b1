"""What a recipe says of hardware reaches the workers, and nothing else reaches what they learn."""

from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.rl.specs import engine_placement, engine_spec, learner_placement, learner_spec
from schemas.optimizer import Optimizer
from schemas.recipe import Recipe


def recipe(**overrides: Any) -> Recipe:
    changes = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_recipe("quickstart", changes, directory=RECIPES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_a_learner_without_an_optimizer_is_frozen(folder: Path) -> None:
    """A reference that could take a step would drift, and the KL with it."""
    planned = recipe()
    frozen = learner_spec(planned, folder, None, device="cpu")
    trained = learner_spec(planned, folder, planned.rl.update.optimizer, device="cpu")
    assert (frozen.trainable, trained.trainable) == (False, True)
    assert trained.lr == planned.rl.update.optimizer.lr
    assert trained.weight_decay == planned.rl.update.optimizer.weight_decay


def test_layout_reaches_learner_and_engine(folder: Path) -> None:
    planned = recipe(
        hardware__learner__micro_batch_tokens=777,
        hardware__learner__row_tokens=333,
        hardware__learner__threads=3,
        hardware__rollout__max_num_seqs=5,
        hardware__timeouts__update_s=9,
        seed=11,
    )
    learner = learner_spec(planned, folder, None, device="cpu", reference_dir=folder)
    assert (learner.micro_batch_tokens, learner.row_tokens, learner.threads) == (777, 333, 3)
    assert (learner.collective_timeout_s, learner.seed) == (9, 11)
    assert learner.reference_dir == learner.model_dir == str(folder)
    engine = engine_spec(planned, folder, "cpu")
    assert (engine.max_num_seqs, engine.max_model_len) == (5, planned.model.max_tokens)
    assert engine.dtype == learner.dtype == planned.model.dtype


def test_workers_take_gpus_where_there_are_any_and_none_on_cpu() -> None:
    """Ray would wait for ever for a GPU that a CPU run never needs."""
    planned = recipe(hardware__learner__gpus_per_rank=0.25, hardware__rollout__gpus_per_engine=0.5)
    assert learner_placement(planned, "cuda").gpus == 0.25
    assert engine_placement(planned, "vllm", "cuda").gpus == 0.5
    assert (
        learner_placement(planned, "cpu").gpus
        == engine_placement(planned, "vllm", "cpu").gpus
        == 0.0
    )


@pytest.mark.parametrize(
    ("engines", "rank", "engine", "share"),
    [
        (1, 0.4, 0.3, 0.6),
        (2, 0.4, 0.3, 0.3),  # beside the rank
        (4, 1, 0.5, 0.3),  # two on each GPU without a rank
        (4, 1, 1, 0.6),
        (4, 0.4, 1, 0.6),
    ],
)
def test_engines_divide_the_memory_of_their_gpu(
    tmp_path: Path, engines: int, rank: float, engine: float, share: float
) -> None:
    planned = recipe(
        hardware__learner__gpus_per_rank=rank,
        hardware__rollout__engines=engines,
        hardware__rollout__gpus_per_engine=engine,
        hardware__rollout__gpu_memory_utilization=0.6,
    )
    assert engine_spec(planned, tmp_path, "cuda").gpu_memory_utilization == share


def test_threads_are_set_before_a_worker_imports() -> None:
    """OpenMP reads them once; without them two workers of one machine slow each other down."""
    planned = recipe(hardware__learner__threads=2, hardware__rollout__threads=3)
    learner, engine = (
        learner_placement(planned, "cpu").env,
        engine_placement(planned, "vllm", "cpu").env,
    )
    assert (learner["OMP_NUM_THREADS"], engine["OMP_NUM_THREADS"]) == ("2", "3")
    assert learner["DS_ACCELERATOR"] == "cpu"
    assert "DS_ACCELERATOR" not in learner_placement(planned, "cuda").env


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        (["sft", "preference", "rl"], {"sft": True, "preference": True, "rl": True}),
        (["preference", "rl"], {"preference": False, "rl": False}),
        (["sft", "rl"], {"sft": True, "rl": False}),
    ],
)
def test_an_adapter_names_the_base_unless_all_weights_were_trained_below(
    stages: list[str], named: dict[str, bool], folder: Path
) -> None:
    """peft would put it on a model that it was not trained on."""
    pairs = {"data": {"kind": "file", "path": "p.jsonl"}}
    overrides = {"model.adapter": {"stages": stages}, "preference": pairs}
    planned = load_recipe("gsm8k-grpo", overrides, directory=RECIPES)
    for stage, base in named.items():
        spec = learner_spec(planned, folder, Optimizer(), device="cpu", stage=stage)
        assert spec.adapter_base == ((planned.model.path or "") if base else ""), stage
