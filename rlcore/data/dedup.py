"""Duplicates within training data, and training data that is also in the evaluation data."""

import hashlib
import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from rlcore.data.words import Boilerplate, grams, words_of

DUPLICATE_GRAM = 5
# Odd, as random as any: places within a gram are told apart.
_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 1],
    dtype=np.uint64,
)
CONTAMINATION_GRAM = 13  # as in GPT-3's decontamination (Brown et al. 2020, appendix C)


def text_hash(text: str) -> bytes:
    """Return 16 bytes that texts share which are equal but for white space."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()


def exact_duplicates(hashes: np.ndarray) -> dict[int, int]:
    """Return {row: first row} for rows that share the hash of an earlier one: uint64 [rows, 2]."""
    ordered = np.sort(hashes[:, 0])
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    first: dict[tuple[int, int], int] = {}
    found = {}
    for row in np.flatnonzero(np.isin(hashes[:, 0], repeated)).tolist():
        one, other = hashes[row].tolist()
        if (kept := first.setdefault((one, other), row)) != row:
            found[row] = kept
    return found


def near_duplicates(texts: Iterable[str], jaccard: float) -> dict[int, int]:
    """Return {row: earlier kept row} whose sets of word 5-grams have at least this Jaccard index.

    Deterministic, and exact but for hashes of 8 bytes that two grams share: an inverted index over
    each row's rarest 5-grams, of which two rows that are similar enough must share one (prefix
    filtering, Bayardo et al. 2007). Rows are compared with kept rows only, so the first of a
    cluster stays. 8 bytes of each gram are held, 16 for a while, and none of the ``texts``.
    """
    held, ends = array("Q"), array("q", [0])
    for text in texts:
        held.frombytes(_gram_hashes(words_of(text)).tobytes())
        ends.append(len(held))
    of_all = np.frombuffer(held, dtype=np.uint64) if held else np.zeros(0, dtype=np.uint64)
    repeated, counts = _repeated(of_all)
    index: dict[int, list[int]] = defaultdict(list)
    found: dict[int, int] = {}
    for row, (start, end) in enumerate(pairwise(ends)):
        own = of_all[start:end]
        # A gram that occurs once leads to no other row.
        shared = np.searchsorted(repeated, own)
        shared[shared == len(repeated)] = 0
        times = np.where(repeated[shared] == own, counts[shared], 1) if len(repeated) else own * 0
        rarest = np.lexsort((own, times))[: len(own) - math.ceil(jaccard * len(own)) + 1]
        leading = own[rarest[times[rarest] > 1]].tolist()
        candidates = sorted({other for gram in leading for other in index.get(gram, ())})
        grams_of_row = set(own.tolist()) if candidates else set()
        match = next(
            (
                o
                for o in candidates
                if _similar(grams_of_row, of_all[ends[o] : ends[o + 1]], jaccard)
            ),
            None,
        )
        if match is not None:
            found[row] = match
            continue
        for gram in leading:
            index[gram].append(row)
    return found


def _gram_hashes(words: tuple[str, ...]) -> np.ndarray:
    """Return a hash (uint64) of each distinct 5-gram, ascending; none of a text without words."""
    if not words:
        return np.zeros(0, dtype=np.uint64)
    hashes = np.array([_word_hash(word) for word in words], dtype=np.uint64)
    length = min(len(words), DUPLICATE_GRAM)
    windows = np.lib.stride_tricks.sliding_window_view(hashes, length)
    return np.unique(windows @ _FACTORS[:length])  # modulo 2^64


@lru_cache(2**17)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def _repeated(grams_of_all: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the grams that occur more than once, ascending, and how often each does."""
    ordered = np.sort(grams_of_all)
    found, counts = np.unique(
        ordered[1:][ordered[1:] == ordered[:-1]],
        return_counts=True,
    )
    return found, counts + 1


def contaminated(texts: Sequence[str], evaluation: Sequence[str]) -> dict[int, int]:
    """Return {row of ``texts``: row of ``evaluation``} for contaminated texts.

    A text is contaminated when its words equal an evaluation text's, or when the two share a run of
    13 words, numbers included and boilerplate left out. Texts below 13 words are compared as a
    whole: short generated problems share all of their words but the numbers.
    """
    eval_words = [words_of(text) for text in evaluation]
    own_words = [words_of(text) for text in texts]
    whole = {words: i for i, words in reversed(list(enumerate(eval_words)))}
    runs: dict[tuple[str, ...], int] = {}
    long = any(len(words) >= CONTAMINATION_GRAM for words in eval_words)
    boilerplate = Boilerplate(eval_words + own_words) if long else Boilerplate(())
    for i, words in enumerate(eval_words):
        for run in _runs(words, boilerplate):
            runs.setdefault(run, i)
    found = {}
    for row, words in enumerate(own_words):
        match = whole.get(words)
        if match is None and runs:
            match = next((runs[r] for r in _runs(words, boilerplate) if r in runs), None)
        if match is not None:
            found[row] = match
    return found


def _similar(one: set[int], other: np.ndarray, jaccard: float) -> bool:
    shared = len(one.intersection(other.tolist()))
    return shared >= jaccard * (len(one) + len(other) - shared)


def _runs(words: tuple[str, ...], boilerplate: Boilerplate) -> list[tuple[str, ...]]:
    if len(words) < CONTAMINATION_GRAM:
        return []
    kept = boilerplate.strip(words)
    return grams(kept, CONTAMINATION_GRAM) if len(kept) >= CONTAMINATION_GRAM else []
