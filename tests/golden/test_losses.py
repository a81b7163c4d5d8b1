"""Token losses against verl and OpenRLHF, value and gradient, on 1,000 random batches, to 1e-6.

GEPO's oracle is written from its paper. ``VERSIONS.json`` names them all. Everything is float64 and
elementwise or per sequence, so the tokens of all batches go through our functions at once.
"""

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch

from rlcore.algorithms.corrections import correction
from rlcore.algorithms.losses import (
    RATIOS,
    clipped_value_loss,
    group_log_expectation,
    policy_loss,
)
from schemas.algorithm import Algorithm
from tests.golden import batches as made
from tests.golden.batches import setting
from tests.golden.comparison import assert_golden, assert_loss, family, tokens, weights_of


def policy_loss_of(
    name: str,
    level: str,
    old: torch.Tensor,
    advantages: torch.Tensor,
    clips: Callable[[int], tuple[float, float, float | None]],
) -> Callable[[torch.Tensor, int], torch.Tensor]:
    def loss_of(logprobs: torch.Tensor, one: int) -> torch.Tensor:
        low, high, dual = clips(one)
        ratio = RATIOS[level](logprobs, old, tokens().rows)
        return policy_loss(
            name, ratio, logprobs, advantages, clip_low=low, clip_high=high, clip_dual=dual
        ).loss

    return loss_of


NUM_CLIPS, NUM_MODES = len(made.CLIPS), len(made.MODES)


def test_clipped_surrogate_with_dual_clip_in_every_aggregation() -> None:
    far, advantages = tokens().field("far_logprobs"), tokens().field("token_advantages")
    assert_loss(
        "clip-dual",
        tokens().field("logprobs"),
        policy_loss_of("clip", "token", far, advantages, lambda one: made.CLIPS[one]),
        NUM_CLIPS,
        lambda number: number // NUM_MODES % NUM_CLIPS,
        weights_of(lambda number: setting(made.MODES, number)),
    )


def test_clipped_surrogate() -> None:
    far, advantages = tokens().field("far_logprobs"), tokens().field("token_advantages")
    assert_loss(
        "clip",
        tokens().field("logprobs"),
        policy_loss_of("clip", "token", far, advantages, lambda one: (*made.CLIPS[one][:2], None)),
        NUM_CLIPS,
        lambda number: number // 2 % NUM_CLIPS,
        weights_of(lambda number: ("token-mean", "seq-mean-token-mean")[number % 2]),
    )


def test_cispo() -> None:
    far, advantages = tokens().field("far_logprobs"), tokens().field("token_advantages")
    assert_loss(
        "cispo",
        tokens().field("logprobs"),
        policy_loss_of("cispo", "token", far, advantages, lambda one: made.CLIPS[one]),
        NUM_CLIPS,
        lambda number: number % NUM_CLIPS,
        weights_of(lambda number: "token-mean"),
    )


def test_reinforce() -> None:
    old, advantages = tokens().field("old_logprobs"), tokens().field("token_advantages")
    assert_loss(
        "reinforce",
        tokens().field("logprobs"),
        policy_loss_of("reinforce", "token", old, advantages, lambda one: (0.2, 0.2, None)),
        1,
        lambda number: 0,
        weights_of(lambda number: "seq-mean-token-sum"),
    )


@pytest.mark.parametrize(
    ("golden", "level"), [("gspo", "sequence"), ("gspo-token", "sequence-token")]
)
def test_gspo(golden: str, level: str) -> None:
    """The token form also with advantages that differ within a sequence."""
    advantages = (
        tokens().row_field("row_advantages")
        if level == "sequence"
        else tokens().field("token_advantages")
    )
    old = tokens().field("old_logprobs")
    assert_loss(
        golden,
        tokens().field("logprobs"),
        policy_loss_of(
            "clip", level, old, advantages, lambda one: (*made.SEQUENCE_CLIPS[one], None)
        ),
        len(made.SEQUENCE_CLIPS),
        lambda number: number % len(made.SEQUENCE_CLIPS),
        weights_of(lambda number: "seq-mean-token-mean"),
    )


def test_gepo() -> None:
    items = family("token")
    expectations, spread = [], []
    for batch in items:
        shape, filled = batch.shape, batch.shape.counts > 0
        sums = np.bincount(
            shape.rows[shape.mask],
            weights=batch.rollout_logprobs[shape.mask],
            minlength=len(shape.counts),
        )
        mean = np.where(filled, sums / np.maximum(shape.counts, 1), np.nan)
        expectation = group_log_expectation(mean, batch.group_ids)
        expectations.append(expectation[filled])
        spread.append(expectation[shape.rows][shape.mask])
    assert_golden("gepo/log_expectation", expectations)

    denominator = torch.from_numpy(np.concatenate(spread))
    logprobs, rows = tokens().field("logprobs"), tokens().rows
    ratio = RATIOS["group"](logprobs, denominator, rows)
    first = np.diff(rows.numpy(), prepend=-1) > 0  # one token of each row
    starts = tokens().split(torch.from_numpy(first))
    weights = tokens().split(ratio)
    assert_golden("gepo/weights", [w[at] for w, at in zip(weights, starts, strict=True)])
    advantages = tokens().row_field("row_advantages")
    assert_loss(
        "gepo",
        logprobs,
        policy_loss_of(
            "clip", "group", denominator, advantages, lambda one: (*made.CLIPS[one][:2], None)
        ),
        NUM_CLIPS,
        lambda number: number % NUM_CLIPS,
        weights_of(lambda number: "seq-mean-token-mean"),
    )


@pytest.mark.parametrize("golden", ["value", "value-unclipped"])
def test_value_loss(golden: str) -> None:
    returns, old_values = tokens().field("returns"), tokens().field("old_values")
    clips = made.VALUE_CLIPS if golden == "value" else (None,)
    assert_loss(
        golden,
        tokens().field("values"),
        lambda values, one: clipped_value_loss(values, returns, old_values, clips[one])[0],
        len(clips),
        lambda number: number % len(clips),
        weights_of(lambda number: "token-mean"),
    )


@pytest.mark.parametrize("mode", get_args(Algorithm.model_fields["aggregation"].annotation))
def test_aggregation(mode: str) -> None:
    losses = tokens().field("token_advantages")
    assert_golden(
        f"aggregation/{mode}", tokens().per_batch(weights_of(lambda number: mode) * losses)
    )


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_correction(level: str) -> None:
    learner, sampler = tokens().field("far_logprobs"), tokens().field("rollout_logprobs")
    caps = torch.stack(
        [
            correction(learner, sampler, tokens().rows, level=level, cap=cap).weights
            for cap in made.CORRECTION_CAPS
        ]
    )
    index = torch.from_numpy(tokens().batch % len(made.CORRECTION_CAPS))
    assert_golden(f"importance-correction/{level}", tokens().split(caps.gather(0, index[None])[0]))
