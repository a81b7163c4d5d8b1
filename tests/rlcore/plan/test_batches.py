"""Batch arithmetic of a plan is that of the run."""

import pytest

from rlcore.plan.batches import (
    all_batches,
    preference_batch,
    reward_model_batch,
    rl_batch,
    sft_batch,
    smaller_passes,
)
from rlcore.plan.machine import check_machine
from schemas.errors import UserError
from tests.rlcore.diagnostics.streams import recipe as shipped
from tests.rlcore.plan.small import ROOMY, recipe


def test_batch_arithmetic_of_one_rl_iteration() -> None:
    two_ranks = {"hardware__learner__ranks": 2, "hardware__device": "cpu"}
    batch = check_machine(recipe(**two_ranks), ROOMY).batches.rl
    assert batch is not None
    assert batch.sequences_per_round == 512
    assert (batch.steps_per_round, batch.total_steps) == (2, 200)
    assert (batch.sequences_per_step, batch.sequences_per_rank) == (256, 128)
    assert batch.longest == 120
    assert batch.sequences_per_micro_batch == 34  # 4096 // 120
    assert batch.micro_batches == 4  # ceil(128 / 34)


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


def test_sft_steps_take_every_row_and_obey_the_cap() -> None:
    sft = check_machine(recipe(), ROOMY).batches.sft
    assert sft is not None
    assert (sft.steps_per_round, sft.total_steps) == (720, 720)
    capped = check_machine(recipe(sft__max_steps=100, sft__epochs=2), ROOMY).batches.sft
    assert capped is not None
    assert capped.total_steps == 100
    assert check_machine(recipe(sft__enabled=False), ROOMY).batches.sft is None
    partial = sft_batch(recipe(sft__epochs=2), 126)
    assert partial is not None
    assert (partial.steps_per_round, partial.total_steps, partial.last_sequences) == (2, 4, 62)
    assert partial.most_tokens == 2 * 126 * 128, "the smaller batches are not counted as full"


def test_a_reward_model_takes_every_prompt_and_at_least_a_batch() -> None:
    section = {"preferences": {"kind": "file", "path": "p.jsonl"}, "max_tokens": 128}
    functions = [{"name": "reward_model"}, {"name": "arithmetic", "weight": 0}]
    of_file = recipe(reward__functions=functions, reward_model=section)
    batch = reward_model_batch(of_file, 111)
    assert batch is not None
    assert (batch.steps_per_round, batch.last_sequences) == (2, 2 * (99 - 64))
    with pytest.raises(
        UserError, match=r"reward_model\.batch_prompts = 64 exceeds the 45 training"
    ):
        reward_model_batch(of_file, 50)


def test_preference_counts_pairs_for_dpo_and_responses_for_kto() -> None:
    """And a run without RL plans no iteration of it."""
    pairs = {"data": {"kind": "file", "path": "p.jsonl"}, "max_tokens": 128, "epochs": 2}
    without = {"rl__enabled": False, "evaluate__checkpoints": ["base", "preference"]}
    dpo = recipe(preference=pairs, **without)
    batch = preference_batch(dpo, 111)
    assert batch is not None
    assert (batch.sequences_per_round, batch.sequences_per_step) == (2 * 99, 2 * 64)
    assert (batch.steps_per_round, batch.total_steps) == (2, 4)
    assert all_batches(dpo, None).rl is None
    kto = recipe(preference={**pairs, "algorithm": "kto", "max_steps": 5}, **without)
    batch = preference_batch(kto, 111)
    assert batch is not None
    assert (batch.sequences_per_round, batch.sequences_per_step) == (2 * 99, 32)
    assert batch.total_steps == 5
    with pytest.raises(UserError, match=r"preference\.batch_size = 64 exceeds the 45 training"):
        preference_batch(dpo, 50)
    assert preference_batch(recipe(), 50) is None


@pytest.mark.parametrize("cap", [None, 7])
def test_a_stage_without_a_full_batch_is_refused(cap: int | None) -> None:
    """It passed with "0 optimizer steps", or those of the cap, and ended after the preparation."""
    with pytest.raises(UserError, match=r"sft\.batch_size = 200 exceeds the 126 training demonst"):
        sft_batch(recipe(sft__batch_size=200, sft__max_steps=cap), 126)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            {"micro_batch_tokens": 119},
            "hardware.learner.micro_batch_tokens = 119 is below data.max_prompt_tokens +"
            " rl.rollout.max_new_tokens = 120, the longest legal sequence; raise it to at least"
            " 120",
        ),
        (
            {"micro_batch_tokens": 59, "sequence_parallel": 2, "ranks": 2, "gpus_per_rank": 1},
            "hardware.learner.micro_batch_tokens = 59 times sequence_parallel = 2 is below"
            " data.max_prompt_tokens + rl.rollout.max_new_tokens = 120, the longest legal sequence;"
            " raise it to at least 60",
        ),
        (
            {"row_tokens": 119},
            "hardware.learner.row_tokens = 119 is below data.max_prompt_tokens +"
            " rl.rollout.max_new_tokens = 120, the longest legal sequence; raise it to at least"
            " 120",
        ),
        (
            {"row_tokens": 4097},
            "hardware.learner.row_tokens = 4097 exceeds micro_batch_tokens = 4096; lower it to"
            " that or raise micro_batch_tokens",
        ),
    ],
)
def test_a_legal_sequence_that_fits_no_micro_batch_is_refused(
    overrides: dict[str, int], sentence: str
) -> None:
    """Found out in the run, it ends at the first long answer."""
    changes = {f"hardware__learner__{name}": value for name, value in overrides.items()}
    with pytest.raises(UserError) as error:
        rl_batch(recipe(**changes))
    assert str(error.value) == sentence


def test_sft_has_a_longest_sequence_of_its_own() -> None:
    with pytest.raises(UserError, match=r"micro_batch_tokens = 127 is below sft\.max_tokens = 128"):
        sft_batch(recipe(hardware__learner__micro_batch_tokens=127), 1000)


def test_steps_of_unknown_demonstrations_are_bounded_by_the_cap_alone() -> None:
    assert sft_batch(recipe(), None).total_steps is None  # pyright: ignore[reportOptionalMemberAccess]
    capped = sft_batch(recipe(sft__max_steps=7), None)
    assert capped is not None
    assert (capped.total_steps, capped.steps_per_round) == (7, None)


def test_the_fullest_micro_batch_is_the_one_that_memory_must_hold() -> None:
    batches = all_batches(recipe(), 46_080)
    assert batches.sft is not None
    assert batches.fullest is batches.sft  # 64 of 128 tokens, RL 34 of 120
    assert batches.fullest.micro_batch_tokens == 32 * 128
    assert all_batches(recipe(sft__enabled=False), None).fullest.micro_batch_tokens == 34 * 120


@pytest.mark.parametrize(
    ("name", "tokens", "half"),
    [
        ("quickstart", 4096, 2048),
        ("quickstart", 300, 150),
        ("quickstart", 255, None),  # the longest sequence has 128
        ("quickstart-rlhf", 8192, 4096),
        ("quickstart-rlhf", 512, None),  # the responses to a prompt are compared in one pass
    ],
)
def test_passes_are_halved_while_what_belongs_together_fits(
    name: str, tokens: int, half: int | None
) -> None:
    assert smaller_passes(shipped(name, hardware__learner__micro_batch_tokens=tokens)) == half
