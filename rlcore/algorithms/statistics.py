"""Estimators of evaluation: pass@k, avg@k, maj@k and 95 % confidence intervals. Pure.

Letters: n samples of one prompt, c of them correct, k the number a user would draw.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.errors import UserError

Z_95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
BLOCK_INDICES = 2**18
RESAMPLES = 2000  # bootstrap draws: the ends of a 95 % interval move by about 1 % of its width


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of k samples is correct.

    ``1 - C(n-c, k) / C(n, k)``, arXiv 2107.03374 eq. 1, as the running product of its reference
    code, which neither overflows nor cancels. Raises ``UserError`` unless 1 <= k <= n and
    0 <= c <= n.
    """
    if not 1 <= k <= n:
        raise UserError(f"pass@{k} cannot be estimated from n = {n} samples; draw at least {k}")
    if not 0 <= c <= n:
        raise UserError(f"c = {c} correct of n = {n} samples is impossible; give 0 <= c <= n")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def avg_at_k(correct: Sequence[bool]) -> float:
    """Return the share of correct samples of one prompt. Raises ``UserError`` without samples."""
    if not correct:
        raise UserError("avg@k needs at least one scored sample of the prompt; got none")
    return sum(correct) / len(correct)


def is_majority_right(correct: Sequence[bool], answers: Sequence[str | None]) -> bool:
    """Return maj@k of one prompt: whether the winner of its samples' extracted ``answers``, in the
    order sampled, is correct.

    Correct samples vote for one answer, as 1/2 and 0.5 do, which both are the truth; the others by
    their text. None (no answer) never wins, however frequent, and a tie goes to the answer that was
    sampled first.
    """
    both = zip(correct, answers, strict=True)
    votes = Counter(right or answer for right, answer in both if answer is not None)
    return bool(votes) and votes.most_common(1)[0][0] is True


def wilson(successes: int, n: int) -> Estimate:
    """Return a proportion of n prompts with its 95 % Wilson score interval.

    Wilson 1927; unlike the normal interval it stays in [0, 1] and has width at 0 and n successes.
    Raises ``UserError`` unless n >= 1 and 0 <= successes <= n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise UserError(
            f"{successes} successes of {n} prompts is no proportion; give n >= 1 prompts"
        )
    share, z2 = successes / n, Z_95**2
    center = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    low = 0.0 if successes == 0 else center - half
    high = 1.0 if successes == n else center + half
    return Estimate(share, low, high)


def bootstrap_mean(values: Sequence[float] | np.ndarray, seed: int) -> Estimate:
    """Return the mean over prompts with its 95 % percentile bootstrap interval.

    Prompts are resampled with replacement ``RESAMPLES`` times (Efron 1979), by ``seed``: the same
    call gives the same interval. Samples of one prompt are not independent, so ``values`` holds one
    number per prompt. Raises ``UserError`` without values.
    """
    return bootstrap_share(np.asarray(values, dtype=np.float64), np.ones(len(values)), seed)


def bootstrap_share(successes: np.ndarray, counts: np.ndarray, seed: int) -> Estimate:
    """Return sum(successes) / sum(counts) with its 95 % percentile bootstrap interval.

    [prompts] each, every count at least 1: a share of items that are correlated within a prompt, so
    prompts are resampled, as in ``bootstrap_mean``. Raises ``UserError`` without prompts.
    """
    if not len(counts):
        raise UserError("a figure over prompts needs at least one prompt; got none")
    rng, num_prompts, shares = np.random.default_rng(seed), len(counts), []
    # Indices of all resamples at once would be 100 MB for ten thousand prompts.
    block = max(1, BLOCK_INDICES // num_prompts)
    for left in range(RESAMPLES, 0, -block):
        rows_BP = rng.integers(0, num_prompts, (min(block, left), num_prompts))
        shares.append(successes[rows_BP].sum(axis=1) / counts[rows_BP].sum(axis=1))
    low, high = np.quantile(np.concatenate(shares), [0.025, 0.975])
    return Estimate(float(successes.sum() / counts.sum()), float(low), float(high))
