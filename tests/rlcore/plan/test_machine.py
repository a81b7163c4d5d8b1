"""What cannot fit a machine is refused before anything starts."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlcore.plan.batches import worker_counts
from rlcore.plan.dry_run import render_plan
from rlcore.plan.machine import Fit, Machine, check_machine, this_machine
from rlcore.plan.memory import GIB
from rlcore.plan.preconditions import StartCheck
from schemas.errors import UserError
from schemas.recipe import Recipe
from tests.rlcore.plan.small import ROOMY, recipe


def test_a_hub_model_that_cannot_be_reached_leaves_its_figures_out() -> None:
    name = "nobody-at-all/no-such-model-for-tests"
    remote = recipe(model__from_scratch=None, model__path=name)
    result = check_machine(remote, ROOMY)
    assert (result.shape, result.memory, result.disk) == (None, None, {})
    assert f"unknown: model not at hand ('{name}'" in render_plan(StartCheck(result))


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
        check_machine(recipe, machine)
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
    assert check_machine(big(**own_gpu, hardware__device="cpu"), machine).device == "cpu"


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, 4096),
        ({"data__sources": [{"kind": "gsm8k", "limit": 100}]}, 100),
        ({"data__sources": [{"kind": "hub", "name": "a/b", "limit": 50}]}, 50),
    ],
)
def test_an_iteration_that_the_sources_cannot_fill_is_named(
    changes: dict[str, Any], most: int
) -> None:
    def of(prompts: int) -> Recipe:
        return recipe(**changes, sft__enabled=False, rl__rollout__prompts=prompts)

    message = refused(of(most + 2), ROOMY)
    assert f"rl.rollout.prompts = {most + 2} exceeds the {most} training prompts" in message
    check_machine(of(most), ROOMY)


def test_one_process_puts_all_on_one_gpu() -> None:
    """The Python API: no engine of vLLM reserves half of the GPU, and no second GPU is needed."""
    machine = Machine(host=1024 * GIB, gpus=(200 * GIB,), disk_free=None)
    inline = {
        "hardware__cluster": "in_process",
        "hardware__rollout__engine": "transformers",
        "hardware__rollout__gpus_per_engine": 1,
        "hardware__learner__gpus_per_rank": 1,
    }
    assert check_machine(big(**inline), machine).device == "cuda"
    less = Machine(host=1024 * GIB, gpus=(180 * GIB,), disk_free=None)
    message = refused(big(**inline), less)  # 170.2 GiB and, in fp32, 28.4 of the engine
    assert "the engine that shares it 28.4 GiB, and the GPU has 180.0 GiB; use a smaller" in message


def test_an_engine_without_room_for_a_sequence_is_refused() -> None:
    """It would start, and end the run, after SFT."""
    small_gpu = Machine(host=1024 * GIB, gpus=(24 * GIB,) * 8, disk_free=None)
    apart = {"hardware__learner__ranks": 7, "hardware__rollout__engines": 1}
    apart |= {"hardware__learner__zero_stage": 3, "hardware__rollout__gpus_per_engine": 1}
    apart |= {"hardware__learner__gpus_per_rank": 1, "model__dtype": "bfloat16"}
    message = refused(big(**apart), small_gpu)
    assert "an engine has room for 0 tokens of keys and values, and model.max_tokens =" in message
    assert "raise gpu_memory_utilization = 0.5 or tensor_parallel, or lower" in message
    check_machine(big(**apart, hardware__rollout__gpu_memory_utilization=0.9), small_gpu)
    cpu = {"hardware__device": "cpu", "hardware__rollout__engine": "vllm"}
    deep = {"model__from_scratch__num_layers": 900, "model__max_tokens": 100_000}
    deep |= {"model__from_scratch__max_position_embeddings": 100_000}
    assert "raise kv_cache_gib = 1, or" in refused(recipe(**cpu, **deep), ROOMY)


def test_heads_without_a_kernel_of_vllm_on_cpu_are_refused() -> None:
    """``auto`` takes vLLM for models of this size."""
    on_cpu = {"hardware__device": "cpu", "model__from_scratch__num_heads": 8}
    wide = {"model__from_scratch__hidden_size": 384, "model__from_scratch__num_layers": 12}
    message = refused(recipe(**on_cpu, **wide), ROOMY)
    assert "has heads of 48 and vLLM on CPU supports (32, 64, 80," in message
    assert "set hardware.rollout.engine to 'transformers'" in message
    check_machine(recipe(**on_cpu, **wide, hardware__rollout__engine="transformers"), ROOMY)


def test_what_a_rank_loads_fits_its_gpu_before_it_is_divided() -> None:
    ranks = {"hardware__learner__ranks": 7, "hardware__learner__gpus_per_rank": 1}
    ranks |= {"hardware__rollout__gpus_per_engine": 1, "hardware__learner__zero_stage": 3}
    machine = Machine(host=1024 * GIB, gpus=(27 * GIB,) * 8, disk_free=None)
    message = refused(big(**ranks, hardware__rollout__engines=1), machine)
    assert "each rank loads all weights, 28.4 GiB, before ZeRO-3 divides them, and" in message
    more = {"hardware__rollout__gpu_memory_utilization": 1.0, "model__dtype": "bfloat16"}
    check_machine(big(**ranks, hardware__rollout__engines=1, **more), machine)


@pytest.mark.parametrize(("named", "count"), [("-1", 0), ("", 0), ("1", 1), ("0,2", 2)])
def test_gpus_that_are_hidden_are_not_planned_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str, count: int
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nprintf '81559\\n81559\\n81559\\n'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert this_machine(str(tmp_path), gpus=True).gpus == (81559 * 2**20,) * count


def test_heads_that_cannot_be_divided_among_processes_are_refused() -> None:
    machine = Machine(host=1024 * GIB, gpus=(80 * GIB,) * 9, disk_free=None)

    def divided(width: int) -> dict[str, Any]:
        rollout = {"tensor_parallel": width, "gpus_per_engine": width, "engines": 1}
        return {f"hardware__rollout__{key}": value for key, value in rollout.items()}

    message = refused(big(**divided(8)), machine)
    assert "tensor_parallel = 8 does not divide the 28 attention heads of a Qwen2" in message
    assert message.endswith("such as 7")
    ranks = {"ranks": 8, "gpus_per_rank": 1, "sequence_parallel": 8}
    settings = {f"hardware__learner__{key}": value for key, value in ranks.items()}
    message = refused(big(**settings), machine)
    assert "sequence_parallel = 8 does not divide the 28 attention heads and 4 heads" in message
    assert message.endswith("such as 4")
    message = refused(big(**divided(4096), hardware__device="cpu"), machine)
    assert "tensor_parallel = 4096 takes a core for each process and this machine has" in message
    elsewhere = Machine(host=1024 * GIB, gpus=(), disk_free=None)
    assert check_machine(big(**divided(28)), elsewhere).device == "cpu"  # planned here, run there
    zero_3 = {"hardware__learner__ranks": 4, "hardware__learner__gpus_per_rank": 1}
    zero_3 |= {"hardware__learner__zero_stage": 3}
    fit = check_machine(big(**divided(4), **zero_3), machine)
    assert fit.memory is not None


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
    assert "need 3 GPUs and 2 are visible; lower these or take a machine with more" in message
    assert message.endswith("or a Ray cluster of several hosts (hardware.ray_address)")


def test_a_served_reward_model_takes_no_gpu() -> None:
    named = [{"name": "reward_model:mine"}, {"name": "arithmetic"}]
    for model, ranks in (
        ({"url": "http://127.0.0.1:1", "version": "1"}, {"policy": 1}),
        ({"path": "owner/name"}, {"policy": 1, "reward model": 1}),
    ):
        given = recipe(reward_models={"mine": model}, reward__functions=named)
        assert worker_counts(given) == ranks


def test_a_reference_of_several_ranks_takes_a_gpu_each_and_may_divide_its_weights() -> None:
    kl = {"rl__algorithm__kl": {"where": "reward", "coef": 0.01}}
    ranks = {f"hardware__learner__{key}": 2 for key in ("ranks", "reference_ranks")}
    given = {**kl, **ranks, "hardware__learner__gpus_per_rank": 1}
    engine = {"hardware__rollout__engines": 1, "hardware__rollout__gpus_per_engine": 1}
    machine = Machine(host=1024 * GIB, gpus=(180 * GIB,) * 4, disk_free=None)
    assert "(2 of the policy + 2 of the reference)" in refused(big(**given, **engine), machine)
    whole = check_machine(big(**given), ROOMY)
    assert whole.memory is not None
    divided = check_machine(big(**given, hardware__learner__zero_stage=3), ROOMY)
    assert divided.memory is not None
    assert divided.memory.reference == pytest.approx(whole.memory.reference / 2, abs=1)
    assert divided.host_bytes < whole.host_bytes
    said = render_plan(StartCheck(divided))
    assert "reference (rl.algorithm.kl is on), 2 rank(s), of which each holds a part: we" in said
    alone = check_machine(big(**given | {"hardware__learner__reference_ranks": 1}), ROOMY)
    assert "hardware.learner.reference_ranks divides that" in render_plan(StartCheck(alone))
    assert "hardware.learner.reference_ranks divides" not in said


def test_a_model_too_large_for_the_host_is_refused() -> None:
    machine = Machine(host=16 * GIB, gpus=(), disk_free=None)
    message = refused(big(), machine)
    assert "take 170.2 GiB and this machine has 16.0 GiB; use a smaller model.path" in message


def test_a_full_disk_is_refused_before_the_run_fills_it(tmp_path: Path) -> None:
    """Not for what the run itself has written before it was killed."""
    here = recipe(store=str(tmp_path))
    needed = sum(check_machine(here, ROOMY).disk.values())
    machine = Machine(host=1024 * GIB, gpus=(), disk_free=needed - 1)
    said = "are free; free some, lower rl.checkpoint.keep_last or point store"
    assert said in refused(here, machine)
    assert isinstance(check_machine(here, Machine(machine.host, (), needed)), Fit)
    (tmp_path / "checkpoint").write_bytes(b"x")
    assert isinstance(check_machine(here, machine), Fit)


@pytest.mark.parametrize(
    ("gpus", "wanted", "line"),
    [
        ((), "auto", "attention of the learners: sdpa, as the device is cpu"),
        ((80 * GIB,), "auto", "sdpa, as flash attention computes in bfloat16 and the model in flo"),
        ((80 * GIB,), "eager", "attention of the learners: eager, as hardware.learner.attention"),
    ],
)
def test_it_says_which_attention_and_why(gpus: tuple[int, ...], wanted: str, line: str) -> None:
    machine = Machine(host=1024 * GIB, gpus=gpus, disk_free=None)
    result = check_machine(recipe(hardware__learner__attention=wanted), machine)
    assert line in render_plan(StartCheck(result))
    assert result.recipe.hardware.learner.attention == wanted, "the recipe is printed as it is"


def test_auto_on_a_gpu_is_planned_as_what_it_means() -> None:
    """With flash attention a row has no mask; which of the two it is depends on the package."""
    machine = Machine(host=1024 * GIB, gpus=(80 * GIB,), disk_free=None)
    auto, *fixed = (
        check_machine(recipe(model__dtype="bfloat16", hardware__learner__attention=name), machine)
        for name in ("auto", "sdpa", "flash_attention_2")
    )
    present = find_spec("flash_attn") is not None
    assert auto.attention.name == ("flash_attention_2" if present else "sdpa")
    assert (auto.memory, auto.batches) == (fixed[present].memory, fixed[present].batches)
    assert fixed[0].memory != fixed[1].memory
    assert present or "flash_attn is not installed (uv pip install" in render_plan(StartCheck(auto))
