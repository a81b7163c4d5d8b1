"""Whether a candidate may replace the champion: paired by prompt, with an interval per set. Pure.

A candidate is promoted only if the bootstrap interval of its mean gain lies above 0 on the primary
set and above -margin on every guard. Where few prompts differ a bootstrap is too sure of itself (of
four that differ, all four favour one of two equal models once in eight times): the interval then
holds 0 unless random signs would seldom do as well (Fisher's randomisation test; of right and
wrong, McNemar's exact). Each further look at the same prompts halves the share of wrong promotions
that the interval allows: prompts that decide again and again promote something by chance.

Letters: P prompts, U distinct gains among them, B bootstrap draws.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np
import polars as pl

from rlcore.algorithms.statistics import Estimate
from schemas.errors import UserError, did_you_mean
from schemas.retrain import WIN_RATE

ALPHA = 0.05  # of the first look: an interval leaves this share out, half of it at each end
LEAST_GAIN = 0.10  # the smallest set is one on which a gain of this size can be told from none
ALL = "all"  # the set of all prompts
EVEN = pl.lit(0.5)  # the win rate of equal models
DRAWS_PER_TAIL = 100  # beyond each end of the interval: the ends move by a few % of its width
MOST_DRAWS = 100_000
BLOCK_VALUES = 2**22  # of draws x distinct gains at a time: 32 MB


class Verdict(StrEnum):
    """What a gate comes to."""

    FIRST = "first"  # there is no champion to be compared with
    PROMOTED = "promoted"  # better on the primary set, and not worse than the margin on any guard
    WORSE = "worse"  # surely worse: below 0 on the primary set, or below -margin on a guard
    UNCERTAIN = "uncertain"  # neither can be said with so few prompts


@dataclass(frozen=True, slots=True)
class OnSet:
    """Champion and candidate on one set: means, and the candidate's gain, whose interval is that of
    its look (``alpha_of``).

    ``bound``: what the whole interval must exceed. ``needed``: prompts that would decide a first
    look, were gain and spread as observed; None where it is decided, or no number of them would.
    """

    name: str
    is_primary: bool
    champion: float
    candidate: float
    gain: Estimate
    bound: float
    prompts: int
    needed: int | None

    @property
    def passes(self) -> bool:
        """Whether the whole interval is above the bound."""
        return self.gain.low > self.bound

    @property
    def fails(self) -> bool:
        """Whether the whole interval is below the bound."""
        return self.gain.high < self.bound


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gate came to, on the ``look``-th look at its prompts. ``missing``: why there was
    nothing to decide by, where there was a champion and nothing of it was compared."""

    verdict: Verdict
    sets: tuple[OnSet, ...]
    look: int
    alpha: float
    missing: str = ""

    @property
    def needed(self) -> int | None:
        """Prompts of the set that needs most of them."""
        return max((each.needed for each in self.sets if each.needed is not None), default=None)

    def sentence(self) -> str:
        """Return the decision as a person reads it."""
        if self.missing:
            return f"held as uncertain: {self.missing}"
        if not self.sets:
            return "promoted as the first champion: there was none to compare it with"
        primary = next(each for each in self.sets if each.is_primary)
        gain = primary.gain
        figures = (
            f"gain on {primary.name} {gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] over"
            f" {primary.prompts} prompts, look {self.look} at them"
        )
        if self.verdict is Verdict.PROMOTED:
            return f"promoted: {figures}"
        failed = [each.name for each in self.sets if not each.is_primary and not each.passes]
        guards = f"; guards not passed: {', '.join(failed)}" if failed else ""
        if self.verdict is Verdict.WORSE:
            return f"held as worse: {figures}{guards}"
        more = (
            f"; about {self.needed} prompts would decide"
            if self.needed is not None
            else "; no number of prompts would decide a gain of this size"
        )
        return f"held as uncertain: {figures}{guards}{more}"


def alpha_of(look: int) -> float:
    """Return the share that the intervals of the ``look``-th look, from 1, leave out.

    >>> alpha_of(1), alpha_of(3)
    (0.05, 0.0125)
    """
    return ALPHA / 2 ** (look - 1)


def least_prompts() -> int:
    """Return the fewest prompts that a set must have: with fewer, the interval of a candidate that
    is right on ``LEAST_GAIN`` more of them, and on none less, would hold 0 at the first look.

    m prompts that differ all favour one of two equal models with probability 2^-m.

    >>> least_prompts()
    60
    """
    return math.ceil(math.ceil(math.log2(2 / ALPHA)) / LEAST_GAIN)


def set_names(rows: pl.DataFrame) -> list[str]:
    """Return the names of the sets in ``rows`` (``data_source``, ``subset``): all prompts, each
    source, and each source's subset as ``source:subset``."""
    pairs = rows.select("data_source", "subset").unique().sort("data_source", "subset").rows()
    sources = sorted({source for source, _ in pairs})
    return [ALL, *sources, *(f"{source}:{subset}" for source, subset in pairs)]


def check_sets(rows: pl.DataFrame, primary: str, guards: Sequence[str]) -> None:
    """Raise UserError where ``rows``, one per test prompt, have no set of a name, or too few of it
    for the gate to decide anything."""
    known = set_names(rows)
    named = [guard for guard in guards if guard != WIN_RATE]  # of all, which hold the primary's
    asked = (("primary", primary), *(("guards", guard) for guard in named))
    for key, name in asked:
        if name not in known:
            raise UserError(
                f"retrain.{key} names the set '{name}', which the test rows do not have"
                f"{did_you_mean(name, known)}; there are {', '.join(known)}"
            )
    for key, name in asked:
        count, least = _of_set(rows, name).height, least_prompts()
        if count < least:
            raise UserError(
                f"retrain.{key}: the set '{name}' has {count} test prompts, and the gate can decide"
                f" nothing with fewer than {least}; add {least - count} test rows, or name another"
                " set"
            )


def decide(
    champion: pl.DataFrame,
    candidate: pl.DataFrame,
    *,
    primary: str,
    guards: Sequence[str] = (),
    margin: float = 0.0,
    look: int = 1,
    won: pl.DataFrame | None = None,
) -> Decision:
    """Return whether ``candidate`` is promoted over ``champion``.

    Each is a frame of ``uid``, ``data_source``, ``subset`` and ``value``, the figure of one prompt
    that both are compared by; higher is better. Prompts that only one of them has, as it has no
    score on the other, are left out. ``margin``: how much a guard may lose, in units of ``value``.
    ``won``: as ``candidate``, what its answers are worth against the champion's, for the guard
    win_rate, whose gain is the win rate less 0.5. Raises UserError as ``check_sets`` does.
    """
    rows = champion.join(candidate.select("uid", new="value"), on="uid", how="inner").sort("uid")
    check_sets(rows, primary, guards)
    alpha = alpha_of(look)
    sets = tuple(
        _on_set(_of_set(rows, name, won), name, bound, alpha, is_primary=is_primary)
        for name, bound, is_primary in (
            (primary, 0.0, True),
            *((guard, -margin, False) for guard in guards),
        )
    )
    if all(each.passes for each in sets):
        verdict = Verdict.PROMOTED
    elif any(each.fails for each in sets):
        verdict = Verdict.WORSE
    else:
        verdict = Verdict.UNCERTAIN
    return Decision(verdict, sets, look, alpha)


def gain_interval(gains_P: np.ndarray, alpha: float) -> Estimate:
    """Return mean and percentile bootstrap interval (Efron 1979) of ``gains_P``, one per prompt;
    with 0 in it where random signs would do as well as these too often.

    A draw is the number of times that each distinct gain occurs in it: the same distribution as
    prompts drawn with replacement and, for right and wrong answers, three numbers instead of P. The
    seed is made of the gains: the same gains have the same interval.
    """
    values_U, counts_U = np.unique(gains_P, return_counts=True)
    seed = hashlib.sha256(values_U.tobytes() + counts_U.astype("<i8").tobytes()).digest()
    rng = np.random.default_rng(list(seed))
    draws = min(MOST_DRAWS, math.ceil(2 * DRAWS_PER_TAIL / alpha))
    block = max(1, BLOCK_VALUES // len(values_U))
    share_U, num_prompts = counts_U / len(gains_P), len(gains_P)
    blocks = [min(block, left) for left in range(draws, 0, -block)]
    means_B = np.concatenate(
        [rng.multinomial(num_prompts, share_U, size) @ values_U / num_prompts for size in blocks]
    )
    low, high = np.quantile(means_B, [alpha / 2, 1 - alpha / 2])
    mean = float(np.mean(gains_P))
    # Each gain with a random sign: what two equal models would differ by.
    sizes_U, of_size_U = np.unique(np.abs(gains_P), return_counts=True)
    flipped_B = np.concatenate(
        [
            (2 * rng.binomial(of_size_U, 0.5, (size, len(sizes_U))) - of_size_U) @ sizes_U
            for size in blocks
        ]
    )
    extreme = np.count_nonzero(flipped_B / num_prompts >= abs(mean) - 1e-12)
    # No share below 1 / draws is seen, of which a late look asks; Hoeffding (1963) bounds it then.
    bound = math.exp(-(float(gains_P.sum()) ** 2) / (2 * (float((gains_P**2).sum()) or 1.0)))
    if min((1 + extreme) / (1 + draws), bound) > alpha / 2:
        low, high = min(low, 0.0), max(high, 0.0)
    return Estimate(mean, float(low), float(high))


def _of_set(rows: pl.DataFrame, name: str, won: pl.DataFrame | None = None) -> pl.DataFrame:
    if name == WIN_RATE and won is not None:
        return won.with_columns(new="value", value=EVEN)
    if name == ALL:
        return rows
    source, subset = pl.col("data_source"), pl.col("subset")
    return rows.filter((source == name) | (source + ":" + subset == name))


def _on_set(
    rows: pl.DataFrame, name: str, bound: float, alpha: float, *, is_primary: bool
) -> OnSet:
    gains_P = (rows["new"] - rows["value"]).to_numpy()
    gain = gain_interval(gains_P, alpha)
    decided = gain.low > bound or gain.high < bound
    return OnSet(
        name,
        is_primary=is_primary,
        champion=float(rows["value"].to_numpy().mean()),
        candidate=float(rows["new"].to_numpy().mean()),
        gain=gain,
        bound=bound,
        prompts=rows.height,
        needed=None if decided else _needed(gains_P, bound),
    )


def _needed(gains_P: np.ndarray, bound: float) -> int | None:
    """Return the prompts whose interval would not hold ``bound``, by the normal approximation.

    They are other prompts than these, so that theirs is a first look.
    """
    away, spread = abs(float(gains_P.mean()) - bound), float(gains_P.std(ddof=1))
    if away < 1e-9 or spread == 0.0:
        return None
    quantile = NormalDist().inv_cdf(1 - ALPHA / 2)
    return max(len(gains_P) + 1, least_prompts(), math.ceil((quantile * spread / away) ** 2))
