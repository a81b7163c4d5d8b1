"""Advantages from scores, in float64 numpy, before any tensor exists.

An estimator is ``f(batch: AdvantageInput, **options)``, one of ``ESTIMATORS`` or a user's
(``plugins``). It returns an AdvantageResult, or one advantage per trajectory [rows], which is
spread over the row's policy tokens. Axes: R rows (trajectories), N all policy tokens of the batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from rlcore.algorithms.gae import (
    discounted_returns,
    generalized_advantages,
    length_adaptive_lambda,
    whitened,
)
from rlcore.algorithms.grouping import GroupStatistics, check_ragged, group_statistics, per_row
from rlcore.algorithms.plugins import resolve
from schemas.errors import UserError, did_you_mean


@dataclass(frozen=True)
class AdvantageInput:
    """One batch of trajectories, ragged over their tokens, prompts included.

    ``scores`` [R]: task score after shaping; NaN or None = could not be scored. ``group_ids`` [R]:
    prompt of each row, any sortable type. ``masks``: bool per token, True where the policy
    sampled it. ``token_kl``: kl_coef x kl_t per token, to be taken off the reward.
    ``turn_rewards``: per token, the part of the score that is given there, at the end of a turn;
    the rest of the score is given at the row's last policy token.
    ``values``: the critic's value of the state before each token. ``baselines`` [R]: score of the
    greedy answer to the row's prompt. Values outside the mask are never read.

    Raises ``UserError`` when shapes disagree or a number that is read is not finite.
    """

    scores: np.ndarray
    group_ids: np.ndarray
    masks: Sequence[np.ndarray]
    token_kl: Sequence[np.ndarray] | None = None
    values: Sequence[np.ndarray] | None = None
    baselines: np.ndarray | None = None
    turn_rewards: Sequence[np.ndarray] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", per_row("scores", self.scores, len(self.masks)))
        object.__setattr__(self, "group_ids", np.asarray(self.group_ids))
        if self.group_ids.shape != self.scores.shape:
            raise UserError(
                f"group_ids has shape {self.group_ids.shape} and scores {self.scores.shape}; "
                "pass one of each per row"
            )
        object.__setattr__(self, "masks", [np.asarray(mask, dtype=bool) for mask in self.masks])
        if self.baselines is not None:
            checked = per_row("baselines", self.baselines, len(self.masks))
            object.__setattr__(self, "baselines", checked)
        for name in ("token_kl", "values", "turn_rewards"):
            if (arrays := getattr(self, name)) is not None:
                check_ragged(name, arrays, self.masks)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Policy tokens of each row [R] int64."""
        counts = (np.count_nonzero(mask) for mask in self.masks)
        return np.fromiter(counts, dtype=np.int64, count=len(self.masks))

    @cached_property
    def scorable(self) -> np.ndarray:
        """Rows [R] bool with a score and a policy token to give it to."""
        return ~np.isnan(self.scores) & (self.lengths > 0)

    def rewards(self) -> list[np.ndarray]:
        """Return R_t per token: -token_kl on policy tokens, + turn_rewards, + what is left of the
        score on the last of them.

        NaN there for a row whose score is. Rows without a policy token get no reward.
        """
        return self.spread(self.rewards_N())

    def sequence_scores(self) -> np.ndarray:
        """Return sum_t R_t of each row [R] float64; NaN where the row is not scorable."""
        totals = self.scores.copy()
        if self.token_kl is not None:
            rows_N = np.repeat(np.arange(len(self.masks)), self.lengths)
            kl_N = self.gather(self.token_kl)
            totals -= np.bincount(rows_N, weights=kl_N, minlength=len(self.masks))
        return np.where(self.scorable, totals, np.nan)

    def groups(self, tolerance: float = 1e-9) -> GroupStatistics:
        """Return the statistics of the sequence scores by prompt group. The task's score alone
        decides whether a group is constant."""
        return group_statistics(
            self.sequence_scores(), self.group_ids, tolerance, task_scores=self.scores
        )

    def rewards_N(self) -> np.ndarray:
        """Return R_t of the policy tokens alone [N] float64."""
        lengths = self.lengths
        if self.token_kl is None:
            rewards_N = np.zeros(int(lengths.sum()))
        else:
            rewards_N = -self.gather(self.token_kl)
        filled = lengths > 0
        last_R = self.scores
        if self.turn_rewards is not None:
            turns_N = self.gather(self.turn_rewards)
            rewards_N += turns_N
            rows_N = np.repeat(np.arange(len(lengths)), lengths)
            last_R = last_R - np.bincount(rows_N, weights=turns_N, minlength=len(lengths))
        rewards_N[np.cumsum(lengths)[filled] - 1] += last_R[filled]
        return rewards_N

    def gather(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the policy tokens of per-token ``arrays`` as one array [N] float64."""
        if not len(arrays):
            return np.zeros(0)
        return np.concatenate(arrays)[np.concatenate(self.masks)].astype(np.float64)

    def spread(self, values_N: np.ndarray) -> list[np.ndarray]:
        """Return ``values_N`` [N] as one array per row, 0 outside the mask."""
        if not self.masks:
            return []
        ends = np.cumsum([0, *map(len, self.masks)])
        flat = np.zeros(ends[-1])
        flat[np.concatenate(self.masks)] = values_N
        return [flat[start:end] for start, end in pairwise(ends)]

    def spread_rows(self, values_R: np.ndarray) -> list[np.ndarray]:
        """Return ``values_R`` [R] on every policy token of its row, 0 outside the mask."""
        return self.spread(np.repeat(values_R, self.lengths))

    def counted_N(self) -> np.ndarray:
        """Policy tokens [N] bool of scorable rows: those that statistics over the batch may use."""
        return np.repeat(self.scorable, self.lengths)


@dataclass(frozen=True)
class AdvantageResult:
    """``advantages`` and ``returns`` (the critic's target, where there is one): per token, float64,
    exactly 0 outside the mask. The counts are of prompt groups; ``estimate`` sets them.
    """

    advantages: list[np.ndarray]
    returns: list[np.ndarray] | None = None
    num_groups: int = 0
    num_constant_groups: int = 0  # two or more scorable rows, all of one task score
    num_singletons: int = 0  # one scorable row: no baseline among its own
    num_unscorable: int = 0  # rows without score or policy token: advantage 0

    @property
    def constant_fraction(self) -> float:
        """Share of groups without a signal for a group estimator: their scores are equal."""
        return self.num_constant_groups / max(self.num_groups, 1)


Estimator = Callable[..., AdvantageResult | np.ndarray]


def grpo(
    batch: AdvantageInput, *, norm_by_std: bool = True, eps: float = 1e-6, tolerance: float = 1e-9
) -> AdvantageResult:
    """A_i = (s_i - mean_g) / (std_g + eps), unbiased std (arXiv 2402.03300 section 4.1.2).

    ``norm_by_std=False`` is Dr.GRPO (arXiv 2503.20783) and GEPO's group mean. Exactly 0 for groups
    whose scores differ by at most ``tolerance`` and for groups of one (verl: the raw reward).

    With KL in the reward, a group of equal task scores gets A_i = mean_g k - k_i, k the coefficient
    x KL of a row. Divided by a deviation that is proportional to the coefficient, eight right
    answers whose penalties differ by 1e-5 would be pushed as hard as right against wrong (as in
    verl's ``compute_grpo_outcome_advantage``). At 0 nothing would pull a solved prompt towards the
    reference, as the KL in the loss does (arXiv 2402.03300 eq. 3; TRL issue 5588).
    """
    groups = batch.groups(tolerance)
    values_R = groups.centred_R
    if norm_by_std:
        scale_G = np.where(groups.constant_G, 1.0, groups.std_G + eps)
        values_R = values_R / scale_G[groups.index_R]
    return _counted(AdvantageResult(batch.spread_rows(values_R)), groups)


def rloo(batch: AdvantageInput) -> np.ndarray:
    """A_i = s_i - mean of the others' s_j = n / (n - 1) (s_i - mean_g) (arXiv 2402.14740 eq. 8).

    n counts trajectories, however many turns each has. 0 for groups of one.
    """
    groups = batch.groups()
    factor_G = groups.count_G / np.maximum(groups.count_G - 1, 1)
    return groups.centred_R * factor_G[groups.index_R]


def remax(batch: AdvantageInput) -> AdvantageResult:
    """A_t = sum_{t' >= t} R_t' - b, b the score of the prompt's greedy answer, without KL
    (arXiv 2310.10505 algorithm 1). Rows without a baseline (NaN) count as unscorable.
    """
    if batch.baselines is None:
        raise UserError(
            "advantage = 'remax' needs baselines, the score of a greedy answer per row; "
            "roll out each prompt once at temperature 0"
        )
    baselines_R = batch.baselines
    batch = replace(batch, scores=np.where(np.isnan(baselines_R), np.nan, batch.scores))
    returns_N = discounted_returns(batch.rewards_N(), batch.lengths)
    advantages_N = returns_N - np.repeat(baselines_R, batch.lengths)
    advantages_N = np.where(batch.counted_N(), advantages_N, 0.0)
    return _counted(AdvantageResult(batch.spread(advantages_N)), batch.groups())


def gae(
    batch: AdvantageInput,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    lam_critic: float | None = None,
    length_adaptive_alpha: float | None = None,
    whiten: bool = True,
) -> AdvantageResult:
    """PPO's advantages and the critic's returns (arXiv 1506.02438), see ``generalized_advantages``.

    The policy's lambda is ``lam``, or by row length when ``length_adaptive_alpha`` is given; the
    critic's is ``lam_critic``, by default ``lam`` (VAPO decouples them: 1 for the critic). Returns
    are A + V before whitening; whitening is over all policy tokens of scorable rows of the batch.
    Unscorable rows get their own values as returns, which makes their critic loss 0; a return of 0
    would train the critic on it.
    """
    if batch.values is None:
        raise UserError(
            "advantage = 'gae' needs values, the critic's value per token; configure a critic or "
            "use an estimator without one (grpo, rloo, remax, reinforce++)"
        )
    lengths, counted_N = batch.lengths, batch.counted_N()
    # Rows are independent, so this only keeps the NaN of unscorable rows out of the arithmetic.
    rewards_N = np.where(counted_N, batch.rewards_N(), 0.0)
    values_N = batch.gather(batch.values)

    def advantages_at(by_lambda: float | np.ndarray) -> np.ndarray:
        return generalized_advantages(rewards_N, values_N, lengths, gamma=gamma, lam=by_lambda)

    if length_adaptive_alpha is None:
        advantages_N = advantages_at(lam)
    else:
        advantages_N = advantages_at(length_adaptive_lambda(lengths, length_adaptive_alpha))
    # Never whitened: the critic learns returns at the scale of the rewards.
    targets_N = advantages_at(lam if lam_critic is None else lam_critic)
    if whiten:
        advantages_N = whitened(advantages_N, counted_N)
    return AdvantageResult(
        advantages=batch.spread(np.where(counted_N, advantages_N, 0.0)),
        returns=batch.spread(values_N + np.where(counted_N, targets_N, 0.0)),
    )


def reinforce_plus_plus(batch: AdvantageInput, *, gamma: float = 1.0) -> AdvantageResult:
    """Discounted returns of R_t, whitened over the batch (REINFORCE++, arXiv 2501.03262)."""
    counted_N = batch.counted_N()
    rewards_N = np.where(counted_N, batch.rewards_N(), 0.0)
    returns_N = discounted_returns(rewards_N, batch.lengths, gamma)
    advantages_N = np.where(counted_N, whitened(returns_N, counted_N), 0.0)
    return AdvantageResult(batch.spread(advantages_N))


def reinforce_plus_plus_baseline(batch: AdvantageInput) -> AdvantageResult:
    """s_i - mean_g on every policy token, whitened over the batch (arXiv 2501.03262 v3).

    Groups of one task score, or of one row, enter the whitening as 0 and are not shifted by it: the
    batch mean would push every answer of the group in the same direction. They keep 0, or with KL
    in the reward their KL term at the scale of its coefficient (see ``grpo``).
    """
    groups, counted_N = batch.groups(), batch.counted_N()
    centred_N = np.repeat(groups.centred_R, batch.lengths)
    learns_N = np.repeat(groups.learns_R, batch.lengths)
    whitened_N = whitened(np.where(learns_N, centred_N, 0.0), counted_N)
    advantages_N = np.where(learns_N, whitened_N, centred_N)
    return AdvantageResult(batch.spread(advantages_N))


ESTIMATORS: dict[str, Estimator] = {
    "gae": gae,
    "grpo": grpo,
    "rloo": rloo,
    "remax": remax,
    "reinforce++": reinforce_plus_plus,
    "reinforce++-baseline": reinforce_plus_plus_baseline,
}


def estimate(name: str, batch: AdvantageInput, **options: object) -> AdvantageResult:
    """Return the advantages of ``batch`` by the estimator ``name``, with its ``options``.

    Whatever the estimator returns, the result is exactly 0 outside the mask and on unscorable rows.
    Raises ``UserError`` for an unknown name or option, and for a result of the wrong shape or with
    a number that is not finite.

    >>> batch = AdvantageInput(np.array([1.0, 0, 0, 0]), np.zeros(4), [np.ones(1, bool)] * 4)
    >>> np.concatenate(estimate("rloo", batch).advantages).round(3)
    array([ 1.   , -0.333, -0.333, -0.333])
    """
    found = find_estimator(name, options)(batch, **options)
    if not isinstance(found, AdvantageResult):
        found = AdvantageResult(batch.spread_rows(_one_per_row(name, found, batch)))
    if not found.num_groups:
        found = _counted(found, batch.groups())
    return replace(found, advantages=_checked(name, found.advantages, batch))


def find_estimator(name: str, options: Mapping[str, object], where: str = "advantage") -> Estimator:
    """Return the estimator ``name``, once it can be called with ``options``.

    ``where``: the dotted path shown in errors. Raises ``UserError`` for an unknown name or option.
    """
    function = resolve(name, ESTIMATORS, where)
    signature = inspect.signature(function)
    try:
        signature.bind(None, **options)
    except TypeError as error:
        takes = list(signature.parameters)[1:]
        near = "".join(did_you_mean(option, takes) for option in options if option not in takes)
        raise UserError(
            f"{where} = '{name}' with options {dict(options)}: {error}; it is called as"
            f" f(batch, **options), and its options are {', '.join(takes) or 'none'}{near}"
        ) from None
    return function


def _counted(result: AdvantageResult, groups: GroupStatistics) -> AdvantageResult:
    return replace(
        result,
        num_groups=len(groups.count_G),
        num_constant_groups=int(groups.constant_G.sum()),
        num_singletons=int((groups.count_G == 1).sum()),
        num_unscorable=int((~groups.scorable_R).sum()),
    )


def _one_per_row(name: str, found: object, batch: AdvantageInput) -> np.ndarray:
    values_R = np.asarray(found, dtype=np.float64)
    if values_R.shape != batch.scores.shape:
        raise UserError(
            f"advantage = '{name}' returned shape {values_R.shape}; it must return one number per "
            f"trajectory, {batch.scores.shape}, or an AdvantageResult"
        )
    return values_R


def _checked(name: str, arrays: Sequence[np.ndarray], batch: AdvantageInput) -> list[np.ndarray]:
    """Return ``arrays`` with zeros outside the mask and on unscorable rows; the rest is finite."""
    shapes = [np.shape(array) for array in arrays]
    if shapes != [mask.shape for mask in batch.masks]:
        raise UserError(
            f"advantage = '{name}' returned arrays of other lengths than the trajectories; "
            "return one number per token, prompt included"
        )
    checked_N = np.where(batch.counted_N(), batch.gather(arrays), 0.0)
    wrong_N = np.flatnonzero(~np.isfinite(checked_N))
    if len(wrong_N):
        ends = np.cumsum(batch.lengths)
        row = int(np.searchsorted(ends, wrong_N[0], side="right"))
        place = wrong_N[0] - (ends[row] - batch.lengths[row])
        token = int(np.flatnonzero(batch.masks[row])[place])
        raise UserError(
            f"advantage = '{name}' gives {checked_N[wrong_N[0]]} at token {token} of row {row}; "
            "advantages must be finite"
        )
    return batch.spread(checked_N)
