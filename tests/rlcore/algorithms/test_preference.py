"""DPO and KTO beside closed forms that are written here in numpy, float64, from the papers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms.objective_types import Metrics, TokenBatch, TokenOutputs
from rlcore.algorithms.preference import (
    DpoObjective,
    KtoObjective,
    ipo_loss,
    kto_losses,
    reference_point,
    sigmoid_loss,
)

LENGTHS = np.array([3, 5, 2, 4, 6, 1])
PROMPTS = np.array([0, 0, 1, 1, 2, 2])
RANKS = np.array([1, 2, 2, 1, 1, 2])
ROWS = np.repeat(np.arange(6), LENGTHS)


def drawn(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs of the policy and of the reference, [tokens] float64."""
    generator = np.random.default_rng(seed)
    reference = -generator.exponential(1.5, len(ROWS))
    return reference + generator.normal(0, 0.7, len(ROWS)), reference


def batch_of(reference: np.ndarray, keep: np.ndarray | None = None) -> TokenBatch:
    """The responses that ``keep`` [tokens] has, with everything that an objective reads."""
    keep = np.ones(len(ROWS), dtype=bool) if keep is None else keep
    fields = {"ref_logprobs": reference, "ranks": RANKS[ROWS], "desirable": RANKS[ROWS] == 1}
    return TokenBatch(
        weights=torch.ones(int(keep.sum())),
        mean_weight=1 / len(ROWS),
        rows=torch.tensor(ROWS[keep]),
        fields={name: torch.tensor(values[keep]).double() for name, values in fields.items()},
        groups=torch.tensor(PROMPTS[ROWS][keep]),
    )


def run(objective: Any, policy: np.ndarray, batch: TokenBatch) -> tuple[float, np.ndarray, Metrics]:
    """Loss, gradient [tokens] and metrics."""
    logprobs = torch.tensor(policy, requires_grad=True)
    entropy = torch.ones(len(policy), dtype=torch.float64)
    loss, metrics = objective(TokenOutputs(logprobs, entropy), batch)
    loss.backward()
    assert logprobs.grad is not None
    return float(loss.detach()), logprobs.grad.numpy(), metrics


def sigma(x: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(x, dtype=np.float64)))


def sums(values: np.ndarray) -> np.ndarray:
    return np.array([values[row == ROWS].sum() for row in range(6)])


PAIRS = ((0, 1), (3, 2), (4, 5))  # better, worse


def dpo_by_hand(policy, reference, *, loss="sigmoid", beta=0.1, smoothing=0.0, alpha=0.0):
    """Loss and gradient [tokens], SPEC2 D0 to D2."""
    h, lp, total, gradient = sums(policy - reference), sums(policy), 0.0, np.zeros(len(ROWS))
    for better, worse in PAIRS:
        if loss == "ipo":
            d = h[better] / LENGTHS[better] - h[worse] / LENGTHS[worse]
            total += (d - 1 / (2 * beta)) ** 2
            slope = np.array([2 * (d - 1 / (2 * beta))] * 2) / LENGTHS[[better, worse]]
        else:
            d = h[better] - h[worse]
            total -= (1 - smoothing) * np.log(sigma(beta * d))
            total -= smoothing * np.log(sigma(-beta * d))
            one = beta * ((1 - smoothing) * sigma(-beta * d) - smoothing * sigma(beta * d))
            slope = np.array([-one, -one])
        total -= alpha * lp[better] / LENGTHS[better]
        gradient[better == ROWS] += slope[0] - alpha / LENGTHS[better]
        gradient[worse == ROWS] -= slope[1]
    return total / len(PAIRS), gradient / len(PAIRS)


def test_losses_are_those_computed_by_hand() -> None:
    margins = torch.tensor([0.0, 5.0, -5.0], dtype=torch.float64)
    found = {
        "sigmoid": sigmoid_loss(margins, 0.1, 0.0),
        "smoothed": sigmoid_loss(margins, 0.1, 0.1),
        "ipo": ipo_loss(margins, 0.1, 0.0),
    }
    assert found["sigmoid"].tolist() == pytest.approx([0.693147, 0.474077, 0.974077], abs=1e-6)
    assert found["smoothed"].tolist() == pytest.approx([0.693147, 0.524077, 0.924077], abs=1e-6)
    assert found["ipo"].tolist() == pytest.approx([25.0, 0.0, 100.0], abs=1e-6)
    kto = kto_losses(
        torch.tensor([2.0, -3.0]).double(),
        torch.tensor([True, False]),
        kl=0.5,
        beta=0.1,
        weights=(1.0, 1.0),
    )
    assert kto.tolist() == pytest.approx([0.462570, 0.413382], abs=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta": 0.5},
        {"label_smoothing": 0.1},
        {"rpo_alpha": 1.0},
        {"loss": "ipo"},
        {"loss": "ipo", "beta": 0.3, "rpo_alpha": 0.5},
    ],
)
def test_dpo_has_the_loss_and_gradient_of_the_closed_form(settings: dict[str, Any]) -> None:
    policy, reference = drawn()
    loss, gradient, metrics = run(DpoObjective(3, **settings), policy, batch_of(reference))
    names = {"label_smoothing": "smoothing", "rpo_alpha": "alpha"}
    hand = dpo_by_hand(policy, reference, **{names.get(k, k): v for k, v in settings.items()})
    assert loss == pytest.approx(hand[0], rel=1e-12)
    np.testing.assert_allclose(gradient, hand[1], rtol=1e-12)
    assert float(metrics.sums["preference/loss"]) == pytest.approx(loss)


def test_dpo_reports_what_trl_names() -> None:
    policy, reference = drawn()
    _, _, metrics = run(DpoObjective(3, beta=0.2, rpo_alpha=1.0), policy, batch_of(reference))
    h, lp = sums(policy - reference), sums(policy)
    better, worse = (np.array(side) for side in zip(*PAIRS, strict=True))
    wanted = {
        "rewards/chosen": 0.2 * h[better].mean(),
        "rewards/rejected": 0.2 * h[worse].mean(),
        "rewards/margins": 0.2 * (h[better] - h[worse]).mean(),
        "rewards/accuracies": (h[better] > h[worse]).mean(),
        "logps/chosen": lp[better].mean(),
        "logps/rejected": lp[worse].mean(),
        "nll_loss": -(lp[better] / LENGTHS[better]).mean(),
        "length/chosen": LENGTHS[better].mean(),
        "length/rejected": LENGTHS[worse].mean(),
        "preference/both_fell": ((h[better] < 0) & (h[worse] < 0)).mean(),
        "entropy": 1.0,
    }
    found = {name: float(metrics.sums[name]) for name in wanted}
    assert found == pytest.approx(wanted, rel=1e-12)
    assert float(metrics.sums["preference/moved"]) == pytest.approx(abs(h / LENGTHS).mean())


def test_at_the_start_dpo_costs_ln_2_and_no_pair_is_right() -> None:
    """Equal rewards count as wrong, so that a policy that has not moved scores 0."""
    _, reference = drawn()
    loss, gradient, metrics = run(DpoObjective(3), reference, batch_of(reference))
    assert loss == pytest.approx(np.log(2), rel=1e-12)
    np.testing.assert_allclose(gradient, np.where(RANKS[ROWS] == 1, -1, 1) * 0.1 / 2 / 3)
    assert float(metrics.sums["rewards/accuracies"]) == 0.0
    assert float(metrics.sums["preference/moved"]) == 0.0


def objectives() -> list[Any]:
    return [
        DpoObjective(3, label_smoothing=0.1, rpo_alpha=0.5),
        DpoObjective(3, loss="ipo"),
        KtoObjective(0.3, (3, 3), weights=(1.0, 1.2)),
    ]


@pytest.mark.parametrize("objective", objectives(), ids=lambda one: type(one).__name__)
def test_micro_batches_add_up_to_the_step(objective: Any) -> None:
    """Cut between prompts, the losses, gradients and metrics of the parts are those of the whole:
    each is divided by the count of the step, not of its part."""
    policy, reference = drawn()
    whole = run(objective, policy, batch_of(reference))
    loss, gradient, added = 0.0, np.zeros(len(ROWS)), {}
    for prompts in ([0], [1, 2]):
        keep = np.isin(PROMPTS[ROWS], prompts)
        part = run(objective, policy[keep], batch_of(reference, keep))
        loss, gradient[keep] = loss + part[0], part[1]
        for name, value in part[2].sums.items():
            added[name] = added.get(name, 0.0) + float(value)
    assert loss == pytest.approx(whole[0], rel=1e-12)
    np.testing.assert_allclose(gradient, whole[1], rtol=1e-12)
    assert added == pytest.approx({k: float(v) for k, v in whole[2].sums.items()}, rel=1e-9)


@pytest.mark.parametrize("objective", objectives(), ids=lambda one: type(one).__name__)
def test_the_order_of_tokens_and_responses_changes_nothing(objective: Any) -> None:
    policy, reference = drawn()
    whole = run(objective, policy, batch_of(reference))
    order, batch = np.random.default_rng(2).permutation(len(ROWS)), batch_of(reference)
    shuffled = replace(
        batch,
        rows=batch.rows[order],
        groups=batch.groups[order],
        fields={name: values[order] for name, values in batch.fields.items()},
    )
    loss, gradient, _ = run(objective, policy[order], shuffled)
    assert loss == pytest.approx(whole[0], rel=1e-12)
    np.testing.assert_allclose(gradient, whole[1][order], rtol=1e-12)


def test_all_pairs_of_a_ranked_prompt_count_and_ties_do_not() -> None:
    """Ranks 1, 2, 2, 3 make five pairs of six."""
    lengths, ranks = np.array([2, 1, 3, 2]), np.array([2, 1, 3, 2])
    rows, generator = np.repeat(np.arange(4), lengths), np.random.default_rng(1)
    policy, reference = generator.normal(-2, 1, (2, len(rows)))
    batch = TokenBatch(
        weights=torch.ones(len(rows)),
        mean_weight=1 / len(rows),
        rows=torch.tensor(rows + 7),
        fields={
            "ref_logprobs": torch.tensor(reference),
            "ranks": torch.tensor(ranks[rows]).double(),
        },
        groups=torch.full((len(rows),), 4),
    )
    loss, _, _ = run(DpoObjective(5), policy, batch)
    h = [(policy - reference)[rows == row].sum() for row in range(4)]
    pairs = [(i, j) for i in range(4) for j in range(4) if ranks[i] < ranks[j]]
    assert len(pairs) == 5
    assert loss == pytest.approx(np.mean([-np.log(sigma(0.1 * (h[i] - h[j]))) for i, j in pairs]))


def test_a_score_far_away_keeps_its_gradient() -> None:
    """Ratios of policies are clamped at 20 nats; the scores of responses must not be."""
    policy, reference = drawn()
    policy = policy - 30 * (RANKS[ROWS] == 1)
    _, gradient, _ = run(DpoObjective(3), policy, batch_of(reference))
    np.testing.assert_allclose(gradient, dpo_by_hand(policy, reference)[1], rtol=1e-9)
    assert np.all(gradient != 0)


def test_sums_are_kept_in_float64() -> None:
    """Float32 sums of 4,000 tokens err by 1e-3 nats and in another order by another amount."""
    generator = np.random.default_rng(0)
    policy = generator.normal(-3, 1, 8000).astype(np.float32)
    rows = np.repeat([0, 1], 4000)
    batch = TokenBatch(
        torch.ones(8000),
        1 / 8000,
        torch.tensor(rows),
        {"ref_logprobs": torch.zeros(8000), "ranks": torch.tensor(rows + 1.0)},
        torch.zeros(8000, dtype=torch.int64),
    )
    _, metrics = DpoObjective(1)(TokenOutputs(torch.tensor(policy)), batch)
    exact = policy[:4000].astype(np.float64).sum()
    assert float(metrics.sums["logps/chosen"]) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.33, 0.5)])
def test_kto_has_the_loss_and_gradient_of_the_closed_form(weights: tuple[float, float]) -> None:
    policy, reference = drawn()
    loss, gradient, metrics = run(
        KtoObjective(0.4, (3, 3), beta=0.2, weights=weights), policy, batch_of(reference)
    )
    h, good = sums(policy - reference), RANKS == 1
    v, weight = sigma(0.2 * np.where(good, h - 0.4, 0.4 - h)), np.where(good, *weights)
    assert loss == pytest.approx((weight * (1 - v)).mean(), rel=1e-12)
    slope = np.where(good, -1, 1) * weight * 0.2 * v * (1 - v) / 6
    np.testing.assert_allclose(gradient, slope[ROWS], rtol=1e-12)
    wanted = {
        "kl": 0.4,
        "rewards/chosen": 0.2 * h[good].mean(),
        "rewards/rejected": 0.2 * h[~good].mean(),
        "rewards/margins": 0.2 * (h[good].mean() - h[~good].mean()),
        "logps/chosen": sums(policy)[good].mean(),
    }
    assert {name: float(metrics.sums[name]) for name in wanted} == pytest.approx(wanted, rel=1e-12)


def test_kto_of_one_class_reports_nothing_of_the_other() -> None:
    """A step with desirable responses alone is legal; a 0 would read as a reward."""
    policy, reference = drawn()
    keep = RANKS[ROWS] == 1
    _, _, metrics = run(KtoObjective(0.0, (3, 0)), policy[keep], batch_of(reference, keep))
    assert "rewards/chosen" in metrics.sums
    assert not {"rewards/rejected", "rewards/margins", "logps/rejected"} & set(metrics.sums)


def test_the_reference_point_is_no_less_than_0() -> None:
    assert reference_point(np.array([-1.0, -4.0]), np.array([-2.0, -7.0])) == pytest.approx(2.0)
    assert reference_point(np.array([-5.0]), np.array([-2.0])) == 0.0
    assert reference_point(np.zeros(0), np.zeros(0)) == 0.0
