"""The inputs of the golden tests: 1,000 random ragged batches per family, from numpy and a seed.

``generate.py`` feeds them to the reference libraries and stores what those return; the test feeds
them to our functions. Only numbers that come out of a library are stored, so both sides build the
inputs here, and ``digest`` proves that they built the same.

Axes: a batch has rows (trajectories) of different lengths; per-token fields are flat over all
tokens of the batch, row after row. ``mask`` is True on the tokens the policy sampled; it has holes
where a tool responded. Values in a hole are junk on purpose.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

SEED = 20260314
NUM_BATCHES = 1000
MAX_TOKENS = 12
VOCABULARY = 5

GAE_SETTINGS = ((1.0, 1.0), (1.0, 0.95), (0.99, 0.95), (0.9, 0.7), (1.0, 0.0))  # gamma, lambda
DECOUPLED_SETTINGS = (  # gamma, lambda of the critic, alpha of the length-adaptive lambda
    (1.0, 1.0, 0.05),
    (1.0, 1.0, 0.2),
    (1.0, 0.95, 0.5),
    (0.97, 1.0, 1.0),
)
CLIPS = ((0.2, 0.2, 3.0), (0.2, 0.28, 10.0), (0.1, 0.3, 1.5), (0.05, 0.4, 2.0))  # low, high, dual
SEQUENCE_CLIPS = ((3e-4, 4e-4), (0.05, 0.1), (0.2, 0.2))
VALUE_CLIPS = (0.2, 0.5, 0.05)
CORRECTION_CAPS = (2.0, 1.2, 5.0)
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
HORIZON = 16  # tokens, the constant of seq-mean-token-sum-norm
KL_COEF = 0.05
KL_TARGET, KL_HORIZON, KL_START = 0.1, 10_000, 1e-3


def setting(settings: Sequence, batch: int):
    """The setting of batch number ``batch``, cycling through all."""
    return settings[batch % len(settings)]


@dataclass(frozen=True)
class Shape:
    """``lengths`` [rows] tokens per row, ``mask`` [tokens] bool."""

    lengths: np.ndarray
    mask: np.ndarray

    @cached_property
    def rows(self) -> np.ndarray:
        """[tokens] int64: the row of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def counts(self) -> np.ndarray:
        """[rows] int64: policy tokens per row."""
        return np.bincount(self.rows[self.mask], minlength=len(self.lengths))

    @cached_property
    def cells(self) -> np.ndarray:
        """[rows, longest] bool: where a padded matrix holds a token."""
        return np.arange(self.lengths.max())[None, :] < self.lengths[:, None]

    def ragged(self, flat: np.ndarray) -> list[np.ndarray]:
        """One array per row."""
        return np.split(flat, np.cumsum(self.lengths)[:-1])

    def padded(self, flat: np.ndarray) -> np.ndarray:
        """[rows, longest] float64, 0 in the padding on the right."""
        matrix = np.zeros(self.cells.shape)
        matrix[self.cells] = flat
        return matrix

    @cached_property
    def padded_mask(self) -> np.ndarray:
        """[rows, longest] bool."""
        return self.padded(self.mask) > 0


@dataclass(frozen=True)
class CriticBatch:
    """1-8 rows of 1-12 tokens, at least two policy tokens; NaN score = unscorable."""

    shape: Shape
    scores: np.ndarray  # [rows]
    values: np.ndarray  # [tokens]
    baselines: np.ndarray  # [rows] score of the greedy answer
    token_kl: np.ndarray | None  # [tokens] coefficient times KL


@dataclass(frozen=True)
class GroupBatch:
    """2-8 rows in groups of 2-4 that differ in score, shuffled; NaN score = unscorable."""

    shape: Shape
    group_ids: np.ndarray  # [rows] int64, neither dense nor sorted
    scores: np.ndarray  # [rows]
    logprobs: np.ndarray  # [tokens]
    ref_logprobs: np.ndarray  # [tokens]
    has_kl: bool


@dataclass(frozen=True)
class TokenBatch:
    """1-8 rows, some without any policy token (never all), for token losses."""

    shape: Shape
    group_ids: np.ndarray  # [rows] int64
    logprobs: np.ndarray  # [tokens], as all below that are not [rows]
    old_logprobs: np.ndarray  # near; three scales of drift, 0 among them
    far_logprobs: np.ndarray  # as the old ones, and now and then 25 nats off
    rollout_logprobs: np.ndarray
    ref_logprobs: np.ndarray
    token_advantages: np.ndarray
    row_advantages: np.ndarray  # [rows]
    values: np.ndarray
    old_values: np.ndarray
    returns: np.ndarray


@dataclass(frozen=True)
class LogitsBatch:
    """1-4 tokens over a small vocabulary."""

    logits: np.ndarray  # [tokens, vocabulary]
    ref_logits: np.ndarray  # [tokens, vocabulary]


@dataclass(frozen=True)
class PreferenceBatch:
    """1-3 prompts with 2-6 ranked answers each, ties allowed (also: all tied), shuffled."""

    group_ids: np.ndarray  # [rows] int64
    quality: np.ndarray  # [rows] int64, higher is better
    scores: np.ndarray  # [rows] of the reward model


@dataclass(frozen=True)
class ScalarBatch:
    """Lengths around a limit, and one measurement of the KL controller."""

    lengths: np.ndarray  # [rows] int64
    max_tokens: int
    cache_tokens: int
    kl: float
    num_sequences: int


def _generator(family: str, batch: int) -> np.random.Generator:
    return np.random.default_rng([SEED, batch, *family.encode()])


def _shape(rng: np.random.Generator, rows: int, empty_rows: float = 0.0) -> Shape:
    """Rows of 1-12 tokens, short ones more often; each row keeps a policy token unless emptied."""
    lengths = rng.integers(1, MAX_TOKENS + 1, size=(2, rows)).min(axis=0)
    lengths[0] = max(lengths[0], 2)
    masks = [rng.random(length) < rng.choice((0.6, 0.9, 1.0)) for length in lengths]
    for row, mask in enumerate(masks):
        mask[rng.integers(len(mask))] = True
        if row == 0:
            mask[:2] = True
        elif rng.random() < empty_rows:
            mask[:] = False
    return Shape(lengths, np.concatenate(masks))


def critic_batch(batch: int) -> CriticBatch:
    """Scores are continuous, and KLs (left out only at the smallest gamma) keep away from 0.

    So no batch of returns is close to constant: verl's means divide by n + 1e-8, and whitening
    would magnify that beyond the tolerance.
    """
    rng = _generator("critic", batch)
    shape = _shape(rng, int(rng.integers(1, 9)))
    rows, tokens = len(shape.lengths), len(shape.mask)
    scores = rng.normal(size=rows)
    scores[1:][rng.random(rows - 1) < 0.1] = np.nan
    has_kl = setting(GAE_SETTINGS, batch)[0] > 0.9 or batch % 2 == 0
    kl = rng.choice((-1.0, 1.0), size=tokens) * rng.uniform(0.2, 1.0, size=tokens)
    return CriticBatch(
        shape=shape,
        scores=scores,
        values=rng.normal(size=tokens),
        baselines=rng.normal(size=rows),
        token_kl=kl if has_kl else None,
    )


def group_batch(batch: int) -> GroupBatch:
    """No constant group and no group of one: there we differ on purpose, which other tests
    cover."""
    rng = _generator("group", batch)
    ids, scores = [], []
    for group in rng.choice(100, size=rng.integers(1, 4), replace=False):
        size = int(rng.integers(2, 5))
        if len(ids) + size > 8:
            break
        group_scores = rng.normal(size=size) if rng.random() < 0.5 else rng.integers(2, size=size)
        group_scores = np.asarray(group_scores, dtype=np.float64)
        if np.ptp(group_scores) == 0:
            group_scores[0] = 1 - group_scores[0]
        ids += [group] * size
        scores += [*group_scores]
        if len(ids) < 8 and rng.random() < 0.15:
            ids.append(group)
            scores.append(np.nan)
    order = rng.permutation(len(ids))
    shape = _shape(rng, len(ids))
    logprobs = -rng.gamma(2.0, 0.6, size=len(shape.mask))
    return GroupBatch(
        shape=shape,
        group_ids=np.array(ids, dtype=np.int64)[order],
        scores=np.array(scores)[order],
        logprobs=logprobs,
        ref_logprobs=logprobs + 0.3 * rng.normal(size=len(logprobs)),
        has_kl=batch % 2 == 1,
    )


def token_batch(batch: int) -> TokenBatch:
    """Log-probs of a policy, of older policies and of a reference; a critic's values."""
    rng = _generator("token", batch)
    shape = _shape(rng, int(rng.integers(1, 9)), empty_rows=0.15)
    rows, tokens = len(shape.lengths), len(shape.mask)
    logprobs = -rng.gamma(2.0, 0.6, size=tokens)
    old_logprobs = logprobs + rng.choice((0.0, 0.05, 0.5)) * rng.normal(size=tokens)
    far = 25.0 * rng.choice((-1, 0, 1), size=tokens, p=(0.01, 0.98, 0.01))
    returns = rng.normal(size=tokens)
    old_values = returns + rng.normal(size=tokens)
    return TokenBatch(
        shape=shape,
        group_ids=rng.integers(1, 4, size=rows) * 7,
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        far_logprobs=old_logprobs + far,
        rollout_logprobs=old_logprobs + 0.4 * rng.normal(size=tokens),
        ref_logprobs=logprobs + rng.normal(size=tokens) + far[::-1],
        token_advantages=rng.normal(size=tokens),
        row_advantages=rng.normal(size=rows),
        values=old_values + 0.4 * rng.normal(size=tokens),
        old_values=old_values,
        returns=returns,
    )


def logits_batch(batch: int) -> LogitsBatch:
    """Peaked and flat distributions."""
    rng = _generator("logits", batch)
    size = (int(rng.integers(1, 5)), VOCABULARY)
    logits = rng.choice((0.3, 2.0, 6.0)) * rng.normal(size=size)
    return LogitsBatch(logits, logits + rng.normal(size=size))


def preference_batch(batch: int) -> PreferenceBatch:
    """At least one prompt has a pair that is no tie; others may have none."""
    rng = _generator("preference", batch)
    ids, quality = [], []
    for prompt in rng.choice(50, size=rng.integers(1, 4), replace=False):
        answers = rng.integers(rng.integers(1, 5), size=rng.integers(2, 7))
        if not ids and np.ptp(answers) == 0:
            answers[0] += 1
        ids += [prompt] * len(answers)
        quality += [*answers]
    order = rng.permutation(len(ids))
    return PreferenceBatch(
        np.array(ids, dtype=np.int64)[order],
        np.array(quality, dtype=np.int64)[order],
        2.0 * rng.normal(size=len(ids)),
    )


def scalar_batch(batch: int) -> ScalarBatch:
    """The cache of the overlong penalty may be 0 (no soft zone) or the whole answer."""
    rng = _generator("scalar", batch)
    max_tokens = int(rng.integers(4, 64))
    return ScalarBatch(
        lengths=rng.integers(0, max_tokens + 6, size=rng.integers(1, 9)),
        max_tokens=max_tokens,
        cache_tokens=int(rng.choice([0, max_tokens, int(rng.integers(0, max_tokens + 1))])),
        kl=float(rng.gamma(2.0, 0.06)),
        num_sequences=int(rng.integers(1, 1025)),
    )


FAMILIES = {
    "critic": critic_batch,
    "group": group_batch,
    "token": token_batch,
    "logits": logits_batch,
    "preference": preference_batch,
    "scalar": scalar_batch,
}


def digest(family: str, items: Sequence) -> str:
    """sha256 over every array and number of every batch of a family."""
    total = hashlib.sha256(family.encode())

    def add(item: object) -> None:
        for field in fields(item):  # pyright: ignore[reportArgumentType]
            value = vars(item)[field.name]
            if isinstance(value, Shape):
                add(value)
            elif value is not None:
                total.update(field.name.encode())
                total.update(np.ascontiguousarray(value).tobytes())

    for item in items:
        add(item)
    return total.hexdigest()
