"""A dry run states the true batch arithmetic and refuses what cannot fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from flows.places import RECIPES
from rlcore.dry_run.batches import rl_batch
from rlcore.dry_run.estimates import activation_bytes, learner_memory
from rlcore.dry_run.plan import GIB, Machine, Plan, plan, render_plan
from rlcore.dry_run.shape import count_parameters, find_shape, from_scratch_shape
from rlcore.recipes import load_recipe, recipe_names
from schemas.errors import UserError
from schemas.hardware import LearnerHardware
from schemas.recipe import FromScratch, ModelSection, Recipe

ROOMY = Machine(host=1024 * GIB, gpus=(), disk_free=1024 * GIB)


def recipe(**overrides: Any) -> Recipe:
    """Return a small arithmetic recipe; keys are dotted paths with ``__`` for the dots."""
    base = {
        "data.max_prompt_tokens": 80,
        "model.max_tokens": 128,
        "sft.max_tokens": 128,
        "sft.batch_size": 64,
        "sft.max_steps": None,
        "rl.iterations": 100,
        "rl.rollout.prompts": 64,
        "rl.rollout.samples": 8,
        "rl.rollout.max_new_tokens": 40,
        "rl.update.mini_batches": 2,
        "rl.update.epochs": 1,
        "rl.algorithm.kl.where": "none",
        "evaluate.max_new_tokens": 40,
        "hardware.learner.micro_batch_tokens": 4096,
        "hardware.learner.ranks": 1,
        "hardware.learner.zero_stage": 1,
        "hardware.device": "auto",
    }
    changes = {path.replace("__", "."): value for path, value in overrides.items()}
    return load_recipe("quickstart", base | changes, directory=RECIPES)


def qwen2(scratch: FromScratch) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=scratch.vocab_size,
        hidden_size=scratch.hidden_size,
        num_hidden_layers=scratch.num_layers,
        num_attention_heads=scratch.num_heads,
        num_key_value_heads=scratch.num_kv_heads,
        intermediate_size=scratch.intermediate_size,
        tie_word_embeddings=scratch.tie_word_embeddings,
    )
    return Qwen2ForCausalLM(config)


def test_batch_arithmetic_of_one_rl_iteration() -> None:
    two_ranks = {"hardware__learner__ranks": 2, "hardware__device": "cpu"}
    batch = plan(recipe(**two_ranks), ROOMY).batches.rl
    assert batch.sequences_per_round == 512
    assert (batch.steps_per_round, batch.total_steps) == (2, 200)
    assert (batch.sequences_per_step, batch.sequences_per_rank) == (256, 128)
    assert batch.longest == 120
    assert batch.sequences_per_micro_batch == 34  # 4096 // 120
    assert batch.micro_batches == 4  # ceil(128 / 34)
    assert batch.tokens_per_step == 256 * 120


def test_epochs_multiply_steps_not_sequences() -> None:
    batch = rl_batch(recipe(rl__update__epochs=3))
    assert (batch.sequences_per_round, batch.steps_per_round, batch.total_steps) == (512, 6, 600)


@pytest.mark.parametrize(
    ("row_tokens", "per_micro_batch"),
    [(None, 34), (120, 34), (250, 34), (1000, 32), (4096, 34)],
)
def test_longest_sequences_fill_micro_batches_as_packing_does(
    row_tokens: int | None, per_micro_batch: int
) -> None:
    import numpy as np

    from rlcore.models.packing import Sequences, pack

    batch = rl_batch(recipe(hardware__learner__row_tokens=row_tokens))
    count = 256
    sequences = Sequences(
        token_ids=[np.ones(120, dtype=np.int32)] * count,
        loss_mask=[np.arange(120) >= 80] * count,
    )
    packed = pack(sequences, micro_batch_tokens=4096, row_tokens=row_tokens)
    assert batch.sequences_per_micro_batch == per_micro_batch
    assert batch.micro_batches == len(packed), "the plan and the learner cut a step differently"


def test_sft_steps_drop_the_last_partial_batch_and_obey_the_cap() -> None:
    sft = plan(recipe(), ROOMY).batches.sft
    assert sft is not None
    assert (sft.steps_per_round, sft.total_steps) == (720, 720)
    capped = plan(recipe(sft__max_steps=100, sft__epochs=2), ROOMY).batches.sft
    assert capped is not None
    assert capped.total_steps == 100
    assert plan(recipe(sft__enabled=False), ROOMY).batches.sft is None


def test_the_printout_says_the_arithmetic_in_words_and_labels_its_assumptions() -> None:
    text = render_plan(plan(recipe(), ROOMY))
    for sentence in (
        "64 prompts x 8 samples -> 512 sequences -> 2 mini-batch(es) of 256 x 1 epoch(s) -> 2"
        " optimizer step(s); at most 80 + 40 = 120 tokens a sequence -> 61,440 tokens, 20,480 of"
        " them sampled",
        "100 iterations -> 6,400 prompts = 1.6 passes over the training prompts, 51,200 sequences,"
        " 200 optimizer steps, at most 6,144,000 tokens",
        "46,080 demonstrations in batches of 64 -> 720 optimizer steps per epoch x 1 epoch(s)",
        "3 checkpoints x 768 prompts x 9 completions",
        "at most 361,600 parameters",
        "ASSUMED speeds and are not guaranteed",
        "hardware.device = 'auto' means cpu here",
    ):
        assert sentence in text, f"missing from the plan: {sentence}\n{text}"
    assert "\n  name: quickstart\n" in text


@pytest.mark.parametrize(
    "scratch",
    [
        FromScratch(vocab_size=484),
        FromScratch(vocab_size=512, tie_word_embeddings=False),
        FromScratch(hidden_size=96, num_layers=3, num_heads=6, num_kv_heads=1, vocab_size=100),
    ],
)
def test_parameter_count_of_a_model_from_scratch_is_the_real_models(scratch: FromScratch) -> None:
    assert from_scratch_shape(scratch).parameters == qwen2(scratch).num_parameters()


def test_the_quickstart_model_has_the_parameters_that_its_document_says() -> None:
    assert from_scratch_shape(FromScratch(vocab_size=484)).parameters == 358_016


@pytest.mark.parametrize("tied", [True, False])
def test_a_local_model_is_counted_from_its_headers(tmp_path: Path, tied: bool) -> None:
    model = qwen2(FromScratch(tie_word_embeddings=tied, vocab_size=300))
    model.save_pretrained(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("model*.safetensors"))) > 1
    assert count_parameters(tmp_path, tied=tied) == model.num_parameters()
    shape, note = find_shape(ModelSection(path=str(tmp_path)))
    assert shape is not None
    assert (shape.parameters, shape.exact, note) == (model.num_parameters(), True, "")
    assert (shape.num_kv_heads, shape.head_dim, shape.vocab_size) == (2, 32, 300)
    assert shape.kv_bytes_per_token(4) == 2 * 2 * 2 * 32 * 4


def test_a_missing_or_damaged_local_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.path = './nowhere' does not exist; give"):
        find_shape(ModelSection(path="./nowhere"))
    (tmp_path / "config.json").write_text('{"vocab_size": 4}')
    with pytest.raises(UserError, match="holds no model"):
        find_shape(ModelSection(path=str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(UserError, match="not a readable safetensors file"):
        find_shape(ModelSection(path=str(tmp_path)))


def test_a_hub_model_that_cannot_be_reached_leaves_its_figures_out() -> None:
    name = "nobody-at-all/no-such-model-for-tests"
    remote = recipe(model__from_scratch=None, model__path=name)
    result = plan(remote, ROOMY)
    assert (result.shape, result.memory, result.stages) == (None, None, ())
    assert f"unknown: model not at hand ('{name}'" in render_plan(result)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("hidden", "feed", "rows", "row"), [(128, 256, 8, 64), (64, 512, 2, 96)])
def test_activation_formula_counts_what_autograd_saves(
    dtype: str, hidden: int, feed: int, rows: int, row: int
) -> None:
    """A wrong formula lets people run out of memory after hours."""

    def saved(num_layers: int) -> int:
        scratch = FromScratch(
            hidden_size=hidden, intermediate_size=feed, num_layers=num_layers, vocab_size=64
        )
        model = qwen2(scratch)
        torch.nn.Module.to(model, torch.float32 if dtype == "float32" else torch.bfloat16)
        parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept: dict[int, torch.Tensor] = {}  # holds the tensors, so no address comes twice

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in parameters:
                kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        half = row // 2
        positions = torch.cat([torch.arange(half), torch.arange(row - half)]).expand(rows, row)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.model(
                input_ids=torch.zeros(rows, row, dtype=torch.long),
                position_ids=positions,
                use_cache=False,
            )
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())

    shape = from_scratch_shape(
        FromScratch(hidden_size=hidden, intermediate_size=feed, num_layers=2, vocab_size=64)
    )
    formula = activation_bytes(shape, dtype, LearnerHardware(), tokens=rows * row, row_tokens=row)
    assert saved(3) - saved(1) == formula  # two layers' worth, embeddings and head cancelled


@pytest.mark.parametrize(
    ("dtype", "stage", "ranks", "bytes_per_parameter"),
    [
        ("float32", 0, 4, 4 + 4 + 8),
        ("float32", 1, 1, 4 + 4 + 16),
        ("bfloat16", 1, 4, 2 + 2 + 4),
        ("bfloat16", 2, 4, 2 + 0.5 + 4),
        ("bfloat16", 3, 4, 0.5 + 0.5 + 4),
    ],
)
def test_zero_stages_divide_the_states(
    dtype: str, stage: int, ranks: int, bytes_per_parameter: float
) -> None:
    shape = from_scratch_shape(FromScratch())
    hardware = LearnerHardware.model_validate({"zero_stage": stage, "ranks": ranks})
    memory = learner_memory(shape, dtype, hardware, on_gpu=True, tokens=1024, row_tokens=128)
    assert memory.states == pytest.approx(bytes_per_parameter * shape.parameters, rel=1e-5)
    assert memory.logits == 3 * 1024 * 512 * 4


def test_offloading_moves_the_optimizer_off_the_gpu() -> None:
    shape = from_scratch_shape(FromScratch())
    hardware = LearnerHardware(offload_optimizer=True)
    memory = learner_memory(shape, "bfloat16", hardware, on_gpu=True, tokens=1, row_tokens=1)
    assert memory.offloaded == memory.optimizer == 16 * shape.parameters
    assert memory.states == 4 * shape.parameters


def big(**overrides: Any) -> Recipe:
    """A recipe of 7.6 G parameters (Qwen2.5-7B's sizes) that is never built."""
    sizes = {
        "hidden_size": 3584,
        "num_layers": 28,
        "num_heads": 28,
        "num_kv_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
        "max_position_embeddings": 128,
    }
    return recipe(model__from_scratch=sizes, **overrides)


def refused(recipe: Recipe, machine: Machine) -> str:
    with pytest.raises(UserError) as error:
        plan(recipe, machine)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_model_too_large_for_the_visible_gpu_is_refused_with_the_remedy() -> None:
    machine = Machine(host=1024 * GIB, gpus=(80 * GIB,), disk_free=None)
    own_gpu = {"hardware__learner__gpus_per_rank": 0.5, "hardware__rollout__engines": 1}
    message = refused(big(**own_gpu), machine)
    # 7,615,616,512 parameters x 24 bytes = 170.2 GiB
    assert "take 170.2 GiB per GPU, the engine that shares it 40.0 GiB, and" in message
    assert "the GPU has 80.0 GiB; raise learner.zero_stage (now 1)" in message
    assert plan(big(**own_gpu, hardware__device="cpu"), machine).device == "cpu"


def test_more_gpus_than_are_visible_are_refused() -> None:
    machine = Machine(host=1024 * GIB, gpus=(80 * GIB,) * 2, disk_free=None)
    message = refused(
        recipe(
            hardware__learner__ranks=2,
            hardware__learner__gpus_per_rank=1,
            hardware__rollout__engines=1,
            hardware__rollout__gpus_per_engine=1,
        ),
        machine,
    )
    assert "need 3 GPUs and 2 are visible; lower these or set hardware.ray_address" in message


def test_a_model_too_large_for_the_host_is_refused() -> None:
    machine = Machine(host=16 * GIB, gpus=(), disk_free=None)
    message = refused(big(), machine)
    assert "take 170.2 GiB and this machine has 16.0 GiB; use a smaller model.path" in message


def test_a_full_disk_is_refused_before_the_run_fills_it() -> None:
    needed = plan(recipe(), ROOMY).disk_bytes
    machine = Machine(host=1024 * GIB, gpus=(), disk_free=needed - 1)
    assert "are free; free some, lower rl.checkpoint.keep_last or point store" in refused(
        recipe(), machine
    )
    assert isinstance(plan(recipe(), Machine(machine.host, (), needed)), Plan)


def test_a_micro_batch_below_one_legal_sequence_is_refused() -> None:
    message = refused(recipe(hardware__learner__micro_batch_tokens=100), ROOMY)
    assert message == (
        "hardware.learner.micro_batch_tokens = 100 is below sft.max_tokens = 128, the longest"
        " legal sequence; raise it to at least 128"
    )
    message = refused(recipe(hardware__learner__row_tokens=119, sft__enabled=False), ROOMY)
    assert "hardware.learner.row_tokens = 119 is below data.max_prompt_tokens +" in message


@pytest.mark.parametrize("name", recipe_names(RECIPES))
def test_every_shipped_recipe_has_a_plan(name: str) -> None:
    text = render_plan(plan(load_recipe(name, directory=RECIPES), ROOMY))
    assert f"Plan of recipe '{name}'" in text
    assert "None" not in text[text.index("Batch arithmetic") :]
