"""Memory in closed form is what a learner takes: a wrong formula fails after hours."""

from typing import Any

import pytest
import torch

from flows.paths import ROOT
from rlcore.models.shape import ModelShape, from_scratch_shape
from rlcore.plan.batches import evaluation_tokens
from rlcore.plan.data_size import data_size
from rlcore.plan.machine import check_machine
from rlcore.plan.memory import (
    LearnerMemory,
    Memory,
    activation_bytes,
    learner_memory,
)
from schemas.hardware import LearnerHardware
from schemas.model import FromScratch
from tests.rlcore.plan.small import ROOMY, qwen2, recipe

STALE = {
    "rl__rollout__max_staleness": 1,
    "rl__algorithm__importance_correction__level": "token",
    "rl__checkpoint__every": 1,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("hidden", "feed", "rows", "row"), [(128, 256, 8, 64), (64, 512, 2, 96)])
def test_activation_formula_counts_what_autograd_saves(
    dtype: str, hidden: int, feed: int, rows: int, row: int
) -> None:
    """A wrong formula lets people run out of memory after hours."""

    def saved(num_layers: int) -> int:
        scratch = FromScratch(
            hidden_size=hidden, intermediate_size=feed, num_layers=num_layers, vocab_size=300
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
        FromScratch(hidden_size=hidden, intermediate_size=feed, num_layers=2, vocab_size=300)
    )
    formula = activation_bytes(shape, dtype, LearnerHardware(), tokens=rows * row, row_tokens=row)
    assert saved(3) - saved(1) == formula  # two layers' worth, embeddings and head cancelled


@pytest.mark.parametrize(
    ("dtype", "stage", "ranks", "bytes_per_parameter"),
    [
        ("float32", 0, 4, 4 + 4 + 8),
        ("float32", 1, 1, 4 + 4 + 16),
        ("bfloat16", 1, 4, 2 + 2 + 4 + 3),
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
    assert memory.states == 8 * shape.parameters, "gradients are summed in fp32 beside bf16's own"


SHAPE = from_scratch_shape(FromScratch())


def memory(**hardware: Any) -> LearnerMemory:
    on_gpu = hardware.pop("on_gpu", True)
    layout = LearnerHardware.model_validate(hardware)
    return learner_memory(SHAPE, "bfloat16", layout, on_gpu=on_gpu, tokens=1000, row_tokens=100)


def test_host_memory_holds_what_is_offloaded_from_a_gpu_only() -> None:
    """Without a GPU both are one memory, and nothing is saved."""
    offload = {"offload_optimizer": True, "offload_params": True, "zero_stage": 3}
    there = memory(**offload)
    assert there.offloaded == there.optimizer + there.weights
    assert there.states == there.gradients
    here = memory(**offload, on_gpu=False)
    assert (here.offloaded, here.states) == (0, here.weights + here.gradients + here.optimizer)


def test_gradient_checkpointing_keeps_one_layer_and_the_inputs_of_all() -> None:
    plain, less = memory(), memory(gradient_checkpointing=True)
    layer = plain.activations // SHAPE.num_layers
    assert less.activations == layer + 1000 * SHAPE.num_layers * 2 * SHAPE.hidden_size
    assert less.states == plain.states


def test_flash_attention_has_no_mask() -> None:
    saved = memory().activations - memory(attention="flash_attention_2").activations
    assert saved == 1000 * SHAPE.num_layers * 2 * 100


def test_logits_are_never_all_alive() -> None:
    """152k logits of a full micro-batch would be larger than the model."""
    wide = from_scratch_shape(FromScratch(vocab_size=152_064))
    layout = LearnerHardware()
    found = learner_memory(wide, "bfloat16", layout, on_gpu=True, tokens=10**6, row_tokens=100)
    assert found.logits == 3 * 256 * 2**20


def test_a_critic_shares_the_policys_gpu() -> None:
    learner = memory()
    both = Memory(learner, learner, reference=7, reward_model=5, engine=0, kv_tokens=None)
    alone = Memory(learner, None, reference=0, reward_model=0, engine=0, kv_tokens=None)
    assert both.states == 2 * alone.states + 12


def disk(**overrides: Any) -> dict[str, int]:
    return check_machine(recipe(**overrides), ROOMY).disk


def test_what_an_iteration_leaves_on_disk_grows_with_what_it_records() -> None:
    sizes = [
        disk(model__dtype="float32")["rl"],
        disk(model__dtype="float32", rl__algorithm__kl__where="monitor")["rl"],
        disk(model__dtype="float32", rl__update__old_logprobs="own", rl__update__epochs=2)["rl"],
    ]
    tokens = 100 * 64 * 8 * 40
    assert [size - sizes[0] for size in sizes[1:]] == [4 * tokens, 2 * 4 * tokens]


def test_stages_are_listed_as_they_run_and_one_that_is_off_is_not() -> None:
    assert list(disk()) == [*("base_model", "prepare_data", "sft", "rl", "evaluate", "export")]
    assert "sft" not in disk(sft__enabled=False)


def test_policies_that_sample_for_iterations_to_come_need_room() -> None:
    """In the host's memory until they are loaded, and on the disk until nothing resumes there."""
    fits = [
        check_machine(recipe(**STALE | {"rl__rollout__max_staleness": stale}), ROOMY)
        for stale in (0, 1, 4)
    ]
    shapes = [fit.shape for fit in fits if fit.shape is not None]
    parameters = shapes[0].parameters
    assert [fit.memory and fit.memory.published for fit in fits] == [
        policies * 4 * parameters for policies in (1, 2, 5)
    ]
    assert fits[2].host_bytes - fits[0].host_bytes == 4 * 4 * parameters
    kept = [fit.recipe.rl.checkpoints_kept for fit in fits]
    assert kept == [2, 2, 5], "keep_last is 2"
    assert fits[2].disk["rl"] - fits[0].disk["rl"] == 3 * 12 * parameters


def test_every_checkpoint_that_is_kept_needs_its_room() -> None:
    """The disk is full in the middle of a run otherwise."""
    few = disk(rl__checkpoint__keep_last=1, rl__checkpoint__keep_best=1)["rl"]
    many = disk(rl__checkpoint__keep_last=4, rl__checkpoint__keep_best=2)["rl"]
    assert many - few == 4 * 12 * from_scratch_shape(FromScratch()).parameters


def test_evaluation_is_capped_per_source_and_greedy_alone_with_one_sample() -> None:
    both = recipe(evaluate__max_prompts=100, evaluate__samples=8)
    data = data_size(both.data)
    assert data.test == (512, 256)
    assert evaluation_tokens(both, data) == (200 * 9 * 40, 200 * 9)
    one = recipe(evaluate__max_prompts=None, evaluate__samples=1, evaluate__pass_k=[1])
    assert evaluation_tokens(one, data) == (768 * 40, 768)


def test_ranks_that_divide_sequences_divide_what_a_pass_keeps() -> None:
    """All but the mask of whole rows, which each of them has."""
    shape = from_scratch_shape(FromScratch(hidden_size=128, num_layers=2, vocab_size=300))

    def of(tokens: int, **hardware: Any) -> LearnerMemory:
        settings = LearnerHardware(ranks=2, gpus_per_rank=1, attention="flash_attention_2")
        return learner_memory(
            shape,
            "float32",
            settings.model_copy(update=hardware),
            on_gpu=True,
            tokens=tokens,
            row_tokens=512,
        )

    divided, half = of(1024, sequence_parallel=2), of(512)
    assert (divided.activations, divided.logits) == (half.activations, half.logits)
    masked = of(1024, sequence_parallel=2, attention="sdpa").activations
    assert masked - divided.activations == of(1024, attention="sdpa").activations - (
        of(1024).activations
    )


@pytest.mark.parametrize(
    ("sizes", "hardware", "row"),
    [
        (
            (494e6, 151936, 896, 24, 14, 2, 64, 4864),
            {"ranks": 1, "zero_stage": 1},
            "| 10.7 GiB, of which states 9.2 |",
        ),
        (
            (7616e6, 152064, 3584, 28, 28, 4, 128, 18944),
            {"ranks": 4, "zero_stage": 3, "gpus_per_rank": 1},
            "| 39.6 GiB, of which states 35.5 |",
        ),
        (
            (32764e6, 152064, 5120, 64, 40, 8, 128, 27648),
            {"ranks": 16, "zero_stage": 3, "gpus_per_rank": 1},
            "| 46.5 GiB, of which states 38.1 |",
        ),
    ],
)
def test_the_documented_layouts_are_what_the_plan_computes(
    sizes: tuple, hardware: dict[str, Any], row: str
) -> None:
    parameters, *others = map(int, sizes)
    shape = ModelShape("Qwen2.5", parameters, True, *others)
    flash = {"attention": "flash_attention_2", "gradient_checkpointing": True}
    layout = LearnerHardware(**hardware, **flash)
    found = learner_memory(shape, "bfloat16", layout, on_gpu=True, tokens=8192, row_tokens=8192)
    gib = 2**30
    said = f"| {found.device / gib:.1f} GiB, of which states {found.states / gib:.1f} |"
    assert said == row
    page = (ROOT / "docs" / "understand" / "long_sequences.md").read_text(encoding="utf-8")
    assert row in page
