"""Weights and masks between learner and sampler against closed forms in float64 numpy."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms.corrections import (
    SUMS,
    Correction,
    correction,
    correction_metrics,
    correction_sums,
)
from rlcore.algorithms.losses import policy_loss
from rlcore.algorithms.objective import PolicyObjective
from rlcore.algorithms.objective_types import TokenBatch, TokenOutputs
from schemas.algorithm import Rejection

LENGTHS = (1, 2, 3, 5, 8, 40)
ROWS = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
ALL = np.full(len(ROWS), True)
GEOMETRIC = Rejection(statistic="geometric", low=0.9, high=1.1)
K3 = Rejection(statistic="k3", high=0.05)
VETO = Rejection(statistic="veto", low=0.6, high=1.6)
SETTINGS: dict[str, dict[str, Any]] = {
    "tis": {"level": "token", "cap": 2.0},
    "clamp": {"level": "token", "cap": 2.0, "low": 0.5},
    "icepop": {"level": "token", "mode": "mask", "cap": 1.5, "low": 0.5},
    "sequence tis": {"level": "sequence", "cap": 2.0},
    "mis": {"level": "sequence", "mode": "mask", "cap": 2.0},
    "mis, both bounds": {"level": "sequence", "mode": "mask", "cap": 2.0, "low": 0.5},
    "geo": {"level": "none", "cap": 2.0, "reject": (GEOMETRIC,)},
    "k3": {"level": "none", "cap": 2.0, "reject": (K3,)},
    "veto": {"level": "none", "cap": 2.0, "reject": (VETO,)},
    "geo-tis": {"level": "token", "cap": 2.0, "reject": (GEOMETRIC,)},
    "all": {"level": "sequence", "mode": "mask", "cap": 3.0, "reject": (GEOMETRIC, K3, VETO)},
}


def stale_batch(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return old and sampler log-probs [tokens] float64 that differ by up to a factor of 7."""
    rng = np.random.default_rng(seed)
    spread = np.array([0.7, 0.05, 0.5, 0.02, 0.3, 0.1])[ROWS]
    old = rng.uniform(-4, -2, len(ROWS))
    return old, old - spread * rng.standard_normal(len(ROWS))


def by_hand(old: np.ndarray, sampler: np.ndarray, rows: np.ndarray, **setting: Any) -> np.ndarray:
    """Return the weights [tokens], a response at a time."""
    level, cap, low = setting["level"], setting["cap"], setting.get("low")
    weights = np.empty(len(rows))
    for row in np.unique(rows):
        of_row = np.exp((old - sampler)[rows == row])
        logs = np.log(of_row)
        weight = {
            "none": np.ones(len(of_row)),
            "token": of_row,
            "sequence": np.full(len(of_row), np.prod(of_row)),
        }[level]
        if level != "none" and setting.get("mode") == "mask":
            weight = np.where((weight >= (low or 0)) & (weight <= cap), weight, 0.0)
        elif level != "none":
            weight = np.minimum(np.maximum(weight, low or 0), cap)
        for one in setting.get("reject", ()):
            value = {
                "geometric": np.array([np.prod(of_row) ** (1 / len(of_row))]),
                "k3": np.array([np.mean(of_row - 1 - logs)]),
                "veto": of_row,
            }[one.statistic]
            if (value < (one.low or 0)).any() or (value > (one.high or np.inf)).any():
                weight = np.zeros(len(of_row))
        weights[rows == row] = weight
    return weights


def corrected(
    old: np.ndarray, sampler: np.ndarray, rows: np.ndarray, dtype: Any = torch.float32, **setting
) -> Correction:
    learner, engine = (torch.tensor(each, dtype=dtype) for each in (old, sampler))
    return correction(learner, engine, torch.from_numpy(rows), **setting)


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_of_a_stale_sampler_are_those_of_the_formula(name: str) -> None:
    """Another weight on a token that an older policy sampled is a step in another direction."""
    changed = 0
    for seed in range(20):
        old, sampler = stale_batch(seed)
        expected = by_hand(old, sampler, ROWS, **SETTINGS[name])
        found = corrected(old, sampler, ROWS, dtype=torch.float64, **SETTINGS[name])
        np.testing.assert_allclose(found.weights, expected, rtol=1e-6, atol=0)
        rounded = corrected(old, sampler, ROWS, **SETTINGS[name])
        assert rounded.weights.dtype == torch.float32
        np.testing.assert_allclose(rounded.weights, expected, rtol=2e-5, atol=0)
        changed += int((expected != 1).any())
    assert changed > 15


@pytest.mark.parametrize("name", SETTINGS)
def test_an_exact_sampler_changes_nothing(name: str) -> None:
    old, _ = stale_batch()
    found = corrected(old, old, ROWS, **SETTINGS[name])
    assert found.weights.tolist() == [1.0] * len(ROWS)
    assert found.kept.all()


@pytest.mark.parametrize("name", SETTINGS)
def test_neither_order_nor_numbers_of_responses_count(name: str) -> None:
    """Packing cuts and mixes responses; numbers without a token, of empty ones, make none."""
    old, sampler = stale_batch()
    whole = corrected(old, sampler, ROWS, **SETTINGS[name]).weights.numpy()
    order = np.random.default_rng(1).permutation(len(ROWS))
    mixed = corrected(old[order], sampler[order], 7 * ROWS[order] + 3, **SETTINGS[name])
    np.testing.assert_allclose(mixed.weights, whole[order], rtol=1e-6)


def test_bounds_are_inclusive() -> None:
    """e^l of 1/2 and 2 are exact, as old / sampler and not its inverse."""
    old = np.log([2.0, 0.5, 2.01, 0.49])
    rows, zero = np.arange(4), np.zeros(4)
    for level in ("token", "sequence"):
        setting: dict[str, Any] = {"level": level, "mode": "mask", "cap": 2.0, "low": 0.5}
        kept = corrected(old, zero, rows, dtype=torch.float64, **setting).kept
        assert kept.tolist() == [True, True, False, False]
    for statistic in ("geometric", "veto"):
        bounds = Rejection.model_validate({"statistic": statistic, "low": 0.5, "high": 2.0})
        kept = corrected(old, zero, rows, torch.float64, level="none", cap=2.0, reject=(bounds,))
        assert kept.weights.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_response_of_one_token_has_one_ratio() -> None:
    """Token, sequence and geometric mean coincide where there is nothing to sum over."""
    old, sampler = stale_batch()
    rows = np.arange(len(old))
    masked = [
        corrected(old, sampler, rows, level=level, mode="mask", low=0.9, cap=1.1)
        for level in ("token", "sequence")
    ]
    torch.testing.assert_close(masked[0].weights, masked[1].weights)
    geometric = corrected(old, sampler, rows, level="none", cap=2.0, reject=(GEOMETRIC,))
    assert geometric.kept.tolist() == masked[0].kept.tolist() == masked[1].kept.tolist()
    assert 0 < int(geometric.kept.sum()) < len(rows)


def test_the_mean_over_a_long_response_is_not_one_of_roundings() -> None:
    """Bounds of .9999 and 1.0001 would reject by the order of float32 additions."""
    rng = np.random.default_rng(0)
    sampler = rng.uniform(-12, 0, 30_000).astype(np.float32)
    old = sampler + np.float32(2**-14)  # 6.1e-5, where float32 can tell it
    exact = float(np.mean(old.astype(np.float64) - sampler.astype(np.float64)))
    rows = np.zeros(len(old), dtype=np.int64)
    for factor, kept in ((1 + 1e-7, True), (1 - 1e-7, False)):
        bound = Rejection(statistic="geometric", high=math.exp(exact) * factor)
        found = corrected(old, sampler, rows, level="none", cap=2.0, reject=(bound,))
        assert bool(found.kept.all()) is kept


def batch_of(old: np.ndarray, sampler: np.ndarray) -> TokenBatch:
    rng = np.random.default_rng(5)
    fields = {"old_logprobs": old, "rollout_logprobs": sampler}
    fields["advantages"] = rng.choice([-1.0, 0.5], len(LENGTHS))[ROWS]
    tensors = {name: torch.tensor(values) for name, values in fields.items()}
    size = len(ROWS)
    weights = torch.full((size,), 1 / size, dtype=torch.float64)
    return TokenBatch(weights, 1 / size, torch.from_numpy(ROWS), tensors)


def objective(**setting: Any) -> PolicyObjective:
    named = {"level": "none", "cap": 2.0, "mode": "truncate", "low": None, **setting}
    reject = named.pop("reject", ())
    ours = {f"importance_{name}": value for name, value in named.items()}
    return PolicyObjective(entropy_coef=None, reject=reject, **ours)


@pytest.mark.parametrize("name", SETTINGS)
def test_masked_tokens_stay_in_the_denominators(name: str) -> None:
    """With them out, rejecting half of a batch would double the step on the other half: loss and
    gradient are those of the same batch, each token times its weight."""
    old, sampler = stale_batch()
    batch = batch_of(old, sampler)
    logprobs = torch.tensor(old + 0.01, requires_grad=True)
    loss, _ = objective(**SETTINGS[name])(TokenOutputs(logprobs), batch)
    (found,) = torch.autograd.grad(loss, logprobs)
    plain, _ = objective()(TokenOutputs(logprobs), batch)
    (gradient,) = torch.autograd.grad(plain, logprobs)
    weights = by_hand(old, sampler, ROWS, **SETTINGS[name])
    np.testing.assert_allclose(found, gradient.numpy() * weights, rtol=1e-9, atol=1e-15)
    assert name in ("tis", "clamp", "sequence tis") or (weights == 0).any()


def test_a_batch_that_is_masked_whole_makes_no_step() -> None:
    """Loss and gradient are 0 and not NaN, and what has no value is left out."""
    old, sampler = stale_batch()
    batch = batch_of(old, sampler + 1.0)
    logprobs = torch.tensor(old, requires_grad=True)
    geo = objective(reject=(Rejection(statistic="geometric", low=0.999, high=1.001),))
    loss, metrics = geo(TokenOutputs(logprobs), batch)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert float(loss.detach()) == 0.0
    assert not gradient.any()
    step = {key: float(value) for key, value in metrics.sums.items()}
    found = correction_metrics([step])
    assert step["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1.0)
    assert found["rollout_corr/rollout_rs_seq_masked_fraction"] == 1.0
    assert "rollout_corr/rollout_is_eff_sample_size" not in found
    assert "rollout_corr/kept_length_ratio" not in found


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_have_no_gradient(name: str) -> None:
    """On policy l is the current log-prob less the sampler's; a gradient through the weight would
    change the objective. Finite differences in float64, the weights of the start held."""
    old, sampler = stale_batch()
    batch = batch_of(old, sampler)
    logprobs = torch.tensor(old, requires_grad=True)
    on_policy = replace(objective(**SETTINGS[name]), on_policy=True, policy_loss="reinforce")
    (gradient,) = torch.autograd.grad(on_policy(TokenOutputs(logprobs), batch)[0], logprobs)
    held = torch.tensor(by_hand(old, sampler, ROWS, **SETTINGS[name]))

    def value(shift: np.ndarray) -> float:
        moved = torch.tensor(old + shift)
        clips: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.2, "clip_dual": None}
        losses = policy_loss("reinforce", held, moved, batch.fields["advantages"], **clips).loss
        return float((batch.weights * held * losses).sum())

    direction = np.random.default_rng(3).standard_normal(len(old))
    numeric = (value(1e-6 * direction) - value(-1e-6 * direction)) / 2e-6
    assert float(gradient.numpy() @ direction) == pytest.approx(numeric, abs=1e-7)


def recorded(
    old: np.ndarray, sampler: np.ndarray, part: np.ndarray, **setting: Any
) -> dict[str, float]:
    """Return the sums of a micro-batch of the tokens ``part`` [tokens] bool."""
    old_part, sampler_part = (torch.tensor(each[part]) for each in (old, sampler))
    rows = torch.from_numpy(ROWS[part])
    fields = {"rollout_logprobs": sampler_part, "advantages": rows % 2 - 0.5}
    batch = TokenBatch(torch.ones(len(rows)), 1 / len(ROWS), rows, fields)
    found = correction(old_part, sampler_part, rows, **setting)
    metrics = correction_sums(found, old_part, batch)
    return {key: float(value) for key, value in metrics.sums.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_metrics_are_of_the_step_however_it_is_cut(name: str) -> None:
    """The effective sample size of the parts says nothing of that of the whole."""
    old, sampler = stale_batch()
    setting = SETTINGS[name]
    whole = recorded(old, sampler, ALL, **setting)
    parts = [recorded(old, sampler, np.equal(ROWS % 3, which), **setting) for which in range(3)]
    summed = {key: sum(part[key] for part in parts) for key in whole}
    assert summed == pytest.approx(whole)
    found = correction_metrics([summed])
    assert found == pytest.approx(correction_metrics([whole]))
    weights = by_hand(old, sampler, ROWS, **setting)
    log = old - sampler
    sums = np.bincount(ROWS, weights=log)
    units = weights if setting["level"] == "token" else weights[np.unique(ROWS, True)[1]]
    kept = np.bincount(ROWS, weights=weights > 0) > 0
    lengths = np.array(LENGTHS)
    expected = {
        "rollout_is_mean": units.mean(),
        "rollout_is_std": units.std(),
        "rollout_is_eff_sample_size": units.sum() ** 2 / (len(units) * (units**2).sum()),
        "rollout_rs_seq_masked_fraction": 1 - kept.mean(),
        "kept_length_ratio": lengths[kept].mean() / lengths.mean(),
        "log_ppl_diff": (-sums / lengths).mean(),
        "chi2_seq": np.exp(2 * sums).mean() - 1,
        "masked_fraction_positive": (weights[ROWS % 2 == 1] == 0).mean(),
        "masked_fraction_negative": (weights[ROWS % 2 == 0] == 0).mean(),
    }
    assert {key: found[f"rollout_corr/{key}"] for key in expected} == pytest.approx(expected)
    means = {
        "kl": -log.mean(),
        "k3_kl": (np.exp(log) - 1 - log).mean(),
        "chi2_token": np.exp(2 * log).mean() - 1,
        "rollout_rs_masked_fraction": (weights == 0).mean(),
    }
    assert {key: whole[f"rollout_corr/{key}"] for key in means} == pytest.approx(means)


def test_effective_sample_size_of_a_worked_example() -> None:
    """Weights 1, 2, .5 and .5: 4^2 / (4 x 5.5)."""
    old, rows = torch.tensor([1.0, 2.0, 0.5, 0.5]).double().log(), torch.arange(4)
    zero = torch.zeros(4, dtype=torch.float64)
    for level in ("token", "sequence"):
        found = correction(old, zero, rows, level=level, cap=2.0 - 1e-9)
        fields = {"rollout_logprobs": zero, "advantages": zero}
        metrics = correction_sums(found, old, TokenBatch(zero, 1 / 4, rows, fields))
        assert float(metrics.maxes["rollout_corr/rollout_is_max"]) == pytest.approx(2.0)
        said = correction_metrics([{key: float(value) for key, value in metrics.sums.items()}])
        assert said["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(0.727273, abs=1e-6)
        assert said["rollout_corr/rollout_is_ratio_fraction_high"] == 0.25


def test_a_step_without_a_correction_reports_none() -> None:
    assert correction_metrics([{"actor/pg_loss": 0.1}, {}]) == {}
    old, sampler = stale_batch()
    _, metrics = objective()(TokenOutputs(torch.tensor(old)), batch_of(old, sampler))
    assert not [name for name in metrics.sums if name.startswith((SUMS, "rollout_corr/"))]


def test_masks_that_select_short_responses_are_told() -> None:
    """The same shift per token makes the sums of long responses leave the bounds first."""
    old = np.zeros(len(ROWS))
    mis: dict[str, Any] = {"level": "sequence", "mode": "mask", "cap": 2.0}
    sums = recorded(old + 0.3, old, ALL, **mis)
    found = correction_metrics([sums])
    assert found["rollout_corr/kept_length_ratio"] == pytest.approx(1.5 / np.mean(LENGTHS))


def test_truncated_importance_weights():
    """The weight is min(exp(old - sampler), cap), per token or over the sequence's sum."""
    old = torch.log(torch.tensor([0.5, 0.9, 0.2]))
    sampler = torch.log(torch.tensor([0.25, 0.1, 0.4]))
    rows = torch.tensor([0, 0, 1])
    token = correction(old, sampler, rows, level="token", cap=2.0).weights
    np.testing.assert_allclose(token, [2.0, 2.0, 0.5], rtol=1e-6)
    sequence = correction(old, sampler, rows, level="sequence", cap=100.0).weights
    np.testing.assert_allclose(sequence, [18.0, 18.0, 0.5], rtol=1e-5)
    assert correction(old, sampler, rows, level="none", cap=2.0).weights.tolist() == [1, 1, 1]
