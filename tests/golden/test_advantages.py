"""Advantages, returns and token rewards against verl, on 1,000 random ragged batches, to 1e-6.

``VERSIONS.json`` says which function of which version, and where we differ on purpose;
``generate.py`` makes the numbers again. Where a batch has a hole in its mask, we are given NaN.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rlcore.algorithms.advantages import AdvantageInput, AdvantageResult, estimate
from rlcore.algorithms.kl import adaptive_coef, kl_estimate
from tests.golden import batches as made
from tests.golden.batches import setting
from tests.golden.comparison import assert_golden, family


def holed(shape: made.Shape, flat: np.ndarray) -> list[np.ndarray]:
    """Ragged, with NaN outside the mask, where values must not matter."""
    return shape.ragged(np.where(shape.mask, flat, np.nan))


def critic_input(batch: made.CriticBatch) -> AdvantageInput:
    shape = batch.shape
    return AdvantageInput(
        scores=batch.scores,
        group_ids=np.arange(len(batch.scores)),
        masks=shape.ragged(shape.mask),
        token_kl=None if batch.token_kl is None else holed(shape, batch.token_kl),
        values=holed(shape, batch.values),
        baselines=batch.baselines,
    )


def group_input(batch: made.GroupBatch, kl_always: bool = False) -> AdvantageInput:
    shape = batch.shape
    token_kl = None
    if batch.has_kl or kl_always:
        logprobs, ref_logprobs = map(torch.from_numpy, (batch.logprobs, batch.ref_logprobs))
        kl = kl_estimate(logprobs, ref_logprobs, "k1").numpy()
        token_kl = holed(shape, made.KL_COEF * kl)
    return AdvantageInput(
        scores=batch.scores,
        group_ids=batch.group_ids,
        masks=shape.ragged(shape.mask),
        token_kl=token_kl,
    )


def on_mask(shape: made.Shape, arrays: list[np.ndarray] | None) -> np.ndarray:
    """The policy tokens; everything else must be exactly 0."""
    assert arrays is not None
    flat = np.concatenate(arrays)
    assert not flat[~shape.mask].any(), "there is a number outside the mask"
    return flat[shape.mask]


def per_row(shape: made.Shape, arrays: list[np.ndarray]) -> np.ndarray:
    """[rows]: the one advantage of each row; it must be the same on all its policy tokens."""
    flat = on_mask(shape, arrays)
    first = np.concatenate([[0], np.cumsum(shape.counts)[:-1]])
    assert np.array_equal(flat, np.repeat(flat[first], shape.counts))
    return flat[first]


def scorable_tokens(batch: made.CriticBatch | made.GroupBatch) -> np.ndarray:
    return np.repeat(~np.isnan(batch.scores), batch.shape.counts)


def critic_results(name: str, options: Callable[[int], dict]) -> list[AdvantageResult]:
    return [
        estimate(name, critic_input(batch), **options(number))
        for number, batch in enumerate(family("critic"))
    ]


def assert_tokens(golden: str, arrays: list) -> None:
    """Compare ragged arrays of the critic family on the tokens of rows that have a score."""
    items = family("critic")
    ours = [on_mask(batch.shape, each) for batch, each in zip(items, arrays, strict=True)]
    assert_golden(golden, ours, [scorable_tokens(batch) for batch in items])


def test_gae() -> None:
    def options(number: int) -> dict:
        gamma, lam = setting(made.GAE_SETTINGS, number)
        return {"gamma": gamma, "lam": lam}

    results = critic_results("gae", options)
    assert_tokens("gae/advantages", [each.advantages for each in results])
    assert_tokens("gae/returns", [each.returns for each in results])


def test_decoupled_gae_with_length_adaptive_lambda() -> None:
    def options(number: int) -> dict:
        gamma, lam_critic, alpha = setting(made.DECOUPLED_SETTINGS, number)
        return {"gamma": gamma, "lam_critic": lam_critic, "length_adaptive_alpha": alpha}

    results = critic_results("gae", options)
    assert_tokens("gae-decoupled/advantages", [each.advantages for each in results])
    assert_tokens("gae-decoupled/returns", [each.returns for each in results])
    raw = critic_results("gae", lambda number: {**options(number), "whiten": False})
    assert_tokens("gae-decoupled/raw", [each.advantages for each in raw])


def test_remax() -> None:
    results = critic_results("remax", lambda number: {})
    assert_tokens("remax/advantages", [each.advantages for each in results])


def test_reinforce_plus_plus() -> None:
    results = critic_results(
        "reinforce++", lambda number: {"gamma": setting(made.GAE_SETTINGS, number)[0]}
    )
    assert_tokens("reinforce++/advantages", [each.advantages for each in results])


@pytest.mark.parametrize(
    ("golden", "name", "options"),
    [
        ("grpo/advantages", "grpo", {}),
        ("grpo/centred", "grpo", {"norm_by_std": False}),
        ("rloo/advantages", "rloo", {}),
        ("reinforce++-baseline/advantages", "reinforce++-baseline", {}),
    ],
)
def test_group_estimators(golden: str, name: str, options: dict) -> None:
    ours = [
        per_row(batch.shape, estimate(name, group_input(batch), **options).advantages)
        for batch in family("group")
    ]
    assert_golden(golden, ours)


def test_kl_in_reward() -> None:
    """Token rewards, and the coefficient that the batch's KL makes of this one."""
    rewards, kls, coefs = [], [], []
    for batch in family("group"):
        given, shape = group_input(batch, kl_always=True), batch.shape
        rewards.append(np.concatenate(given.rewards())[shape.mask])
        scored = AdvantageInput(
            np.zeros(len(batch.scores)), given.group_ids, given.masks, given.token_kl
        )
        kl = -scored.sequence_scores() / made.KL_COEF / shape.counts
        kls.append(np.array([kl.mean()]))
        coefs.append(
            adaptive_coef(
                made.KL_COEF,
                float(kl.mean()),
                target=made.KL_TARGET,
                num_sequences=len(kl),
                horizon=made.KL_HORIZON,
            )
        )
    assert_golden("kl-in-reward/rewards", rewards, [scorable_tokens(b) for b in family("group")])
    assert_golden("kl-in-reward/kl", kls)
    assert_golden("kl-in-reward/coef", [np.array([coef]) for coef in coefs])
