"""Importance ratios of tokens, sequences (GSPO) and groups (GEPO)."""

import numpy as np
import pytest
import torch

from rlcore.algorithms.aggregation import token_weights
from rlcore.algorithms.losses import RATIOS, clipped_surrogate, group_log_expectation

ROWS = torch.tensor([7, 7, 7, 2, 2, 40, 40, 40, 40])  # ids of sequences, not positions
LENGTHS = np.array([3, 2, 4])
SEQUENCES = [row == ROWS for row in (7, 2, 40)]
LEVELS = ("token", "sequence", "sequence-token", "group")
GSPO_CLIP = {"clip_low": 3e-4, "clip_high": 4e-4, "clip_dual": None}
WIDE_CLIP = {"clip_low": 0.2, "clip_high": 0.2, "clip_dual": None}


def draw(seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return -1.5 + scale * torch.randn(len(ROWS), generator=generator, dtype=torch.float64)


def per_sequence(values: list[float]) -> torch.Tensor:
    """One number per sequence, on each of its tokens."""
    return torch.tensor(np.repeat(values, LENGTHS))


def sequence_loss(level, logprobs, old, advantages, **clip) -> torch.Tensor:
    """The mean over sequences of a surrogate, aggregated as GSPO and GEPO are."""
    weights = torch.tensor(np.repeat(token_weights("seq-mean-token-mean", LENGTHS), LENGTHS))
    ratio = RATIOS[level](logprobs, old, ROWS)
    return (weights * clipped_surrogate(ratio, advantages, **clip).loss).sum()


def test_sequence_ratio_is_the_geometric_mean_of_its_tokens():
    """By hand, sequence by sequence (arXiv 2507.18071 eq. 7)."""
    logprobs, old = draw(0), draw(1)
    found = RATIOS["sequence"](logprobs, old, ROWS)
    for tokens in SEQUENCES:
        expected = float((logprobs - old)[tokens].mean().exp())
        np.testing.assert_allclose(found[tokens], expected, rtol=1e-14)
    torch.testing.assert_close(RATIOS["sequence-token"](logprobs, old, ROWS), found)


def test_ratio_stays_finite_for_a_policy_far_away():
    far = torch.tensor([0.0, -500.0]), torch.tensor([-500.0, 0.0])
    for level in LEVELS:
        ratio = RATIOS[level](*far, torch.tensor([0, 1]))
        assert torch.isfinite(ratio).all()
        assert float(ratio[0]) == pytest.approx(np.exp(20.0))


def test_sequence_loss_is_one_surrogate_per_sequence():
    """The mean over sequences of max(-A s, -A clip(s)), however long each is."""
    logprobs, old, advantages = draw(0, 0.3), draw(1, 0.3), [1.0, -0.5, 0.7]
    found = sequence_loss("sequence", logprobs, old, per_sequence(advantages), **WIDE_CLIP)
    expected = []
    for tokens, advantage in zip(SEQUENCES, advantages, strict=True):
        s = float((logprobs - old)[tokens].mean().exp())
        expected.append(max(-advantage * s, -advantage * min(max(s, 0.8), 1.2)))
    assert float(found) == pytest.approx(np.mean(expected), abs=1e-14)


@pytest.mark.parametrize("clip", [GSPO_CLIP, WIDE_CLIP])
def test_gspo_token_equals_gspo_when_advantages_are_uniform(clip):
    """Equal value and gradient (arXiv 2507.18071 eq. 14)."""
    results = []
    for level in ("sequence", "sequence-token"):
        logprobs = draw(0, 0.1).requires_grad_()
        loss = sequence_loss(level, logprobs, draw(1, 0.1), per_sequence([1.0, -0.5, 0.7]), **clip)
        loss.backward()
        assert logprobs.grad is not None
        results.append((loss.detach(), logprobs.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-14)


def test_gspo_token_gives_each_token_its_own_advantage():
    """Its gradient is -sg[s] A_t per token, where GSPO's spreads the mean advantage."""
    logprobs, old, advantages = draw(0, 0.01).requires_grad_(), draw(0, 0.01), draw(2)
    ratio = RATIOS["sequence-token"](logprobs, old, ROWS)
    (-advantages * ratio).sum().backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, -advantages)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numerical_noise_alone_clips_gspo_wholly(dtype):
    """Learner and old log-probs 6e-4 apart leave no gradient at A > 0, so both must come from one
    code path."""
    logprobs = draw(0).to(dtype).requires_grad_()
    old = logprobs.detach() - 6e-4
    ratio = RATIOS["sequence"](logprobs, old, ROWS)
    found = clipped_surrogate(ratio, torch.ones(len(ROWS), dtype=dtype), **GSPO_CLIP)
    assert float(found.clipped.double().mean()) == 1.0
    found.loss.sum().backward()
    assert logprobs.grad is not None
    assert not logprobs.grad.any()


@pytest.mark.parametrize("level", ["token", "sequence", "sequence-token"])
def test_on_policy_gradient_is_the_score_function(level):
    """Ratio 1 exactly, gradient -A grad log p."""
    logprobs, advantages = draw(0).requires_grad_(), per_sequence([1.0, -0.5, 0.7])
    ratio = RATIOS[level](logprobs, logprobs.detach(), ROWS)
    assert (ratio == 1.0).all()
    sequence_loss(level, logprobs, logprobs.detach(), advantages, **GSPO_CLIP).backward()
    weights = torch.tensor(np.repeat(token_weights("seq-mean-token-mean", LENGTHS), LENGTHS))
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, -weights * advantages, rtol=0, atol=1e-15)


@pytest.mark.parametrize("level", ["token", "sequence", "group"])
def test_gradient_agrees_with_finite_differences(level):
    logprobs, old, advantages = draw(0, 0.3).requires_grad_(), draw(1, 0.3), draw(2)
    clip = {"clip_low": 0.2, "clip_high": 0.28, "clip_dual": 3.0}
    assert torch.autograd.gradcheck(
        lambda logprobs: sequence_loss(level, logprobs, old, advantages, **clip), logprobs
    )


def group_ratio(logprobs: torch.Tensor, sampler: torch.Tensor, groups: list[int]) -> torch.Tensor:
    """GEPO's w of the three sequences, from token log-probs."""
    mean_logq = np.array([float(sampler[tokens].mean()) for tokens in SEQUENCES])
    expectation = group_log_expectation(mean_logq, np.array(groups))
    ratio = RATIOS["group"](logprobs, per_sequence(expectation.tolist()), ROWS)
    return torch.stack([ratio[tokens][0] for tokens in SEQUENCES])


def test_gepo_by_hand():
    """With q = p = [.5, .25]: E = .41667 and w = [1.2, .6], on-policy or not."""
    mean_logq = np.log([0.5, 0.25])
    expectation = group_log_expectation(mean_logq, np.zeros(2))
    np.testing.assert_allclose(np.exp(expectation), 0.41667, atol=5e-6)
    logprobs, rows = torch.tensor(mean_logq), torch.tensor([0, 1])
    ratio = RATIOS["group"](logprobs, torch.tensor(expectation), rows)
    np.testing.assert_allclose(ratio, [1.2, 0.6], atol=1e-12)


def test_gepo_groups_by_prompt_and_equals_gspo_when_all_q_are_equal():
    sampler = torch.full((len(ROWS),), -1.3, dtype=torch.float64)
    logprobs = draw(0, 0.3)
    gspo = RATIOS["sequence"](logprobs, sampler, ROWS)
    expected = torch.stack([gspo[tokens][0] for tokens in SEQUENCES])
    torch.testing.assert_close(group_ratio(logprobs, sampler, [1, 1, 1]), expected)
    # A group of one: the expectation of q is q.
    mixed = draw(1, 0.3)
    alone = group_ratio(logprobs, mixed, [4, 9, 2])
    gspo = RATIOS["sequence"](logprobs, mixed, ROWS)
    torch.testing.assert_close(alone, torch.stack([gspo[tokens][0] for tokens in SEQUENCES]))


def test_gepo_needs_length_normalised_probabilities():
    """With raw sums only the likeliest sample would learn."""
    sums = np.array([-100.0, -105.0, -110.0, -120.0])
    groups = np.zeros(4)
    raw = np.exp(sums - group_log_expectation(sums, groups))
    np.testing.assert_allclose(raw, [1.007, 0.0068, 4.6e-5, 2e-9], rtol=0.05)
    means = sums / np.array([200, 210, 220, 240])
    np.testing.assert_allclose(np.exp(means - group_log_expectation(means, groups)), 1.0)
    # Gradients by each sequence's log-probability, advantages [1, 1, -1, -1], clip .2.
    advantages, rows = torch.tensor([1.0, 1, -1, -1], dtype=torch.float64), torch.arange(4)
    for values, expected in ((sums, [-0.25, -0.0017, 0, 0]), (means, [-0.25, -0.25, 0.25, 0.25])):
        logp = torch.tensor(values, requires_grad=True)
        expectation = torch.tensor(group_log_expectation(values, groups))
        ratio = RATIOS["group"](logp, expectation, rows)
        clipped_surrogate(ratio, advantages, **WIDE_CLIP).loss.mean().backward()
        assert logp.grad is not None
        np.testing.assert_allclose(logp.grad, expected, rtol=0.01, atol=5e-5)


def test_gepo_expectation_does_not_underflow_and_leaves_empty_rows_out():
    mean_logq = np.array([-2000.0, -2001.0, np.nan, np.nan])
    found = group_log_expectation(mean_logq, np.array(["a", "a", "a", "b"]))
    q = np.exp([0.0, -1.0])
    np.testing.assert_allclose(found[:3], np.log((q**2).sum() / q.sum()) - 2000.0)
    assert np.isnan(found[3])
    assert group_log_expectation(np.zeros(0), np.zeros(0)).shape == (0,)


def test_gepo_weights_vary_less_than_gspo_ratios_off_policy():
    """The reason for GEPO: a stale sampler's q in the denominator explodes on its own."""
    rng = np.random.default_rng(0)
    logq = rng.normal(-2.0, 1.0, size=(500, 8))
    logp = logq + rng.normal(0.0, 1.0, size=logq.shape)
    groups = np.repeat(np.arange(500), 8)
    expectation = group_log_expectation(logq.ravel(), groups).reshape(logq.shape)
    assert np.exp(logp - expectation).var() < np.exp(logp - logq).var()
