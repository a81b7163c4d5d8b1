"""Duplicates within training data, and training data that is also in the evaluation data."""

import hashlib
import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import numpy as np

from rlcore.data.words import Boilerplate, gram_hashes, grams, repeated, words_of

BLOCK_ROWS = 2**20  # whose hashes are looked up at once
DUPLICATE_GRAM = 5
CONTAMINATION_GRAM = 13  # as in GPT-3's decontamination (Brown et al. 2020, appendix C)


def text_hash(text: str) -> bytes:
    """Return 16 bytes that texts share which are equal but for white space."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()


def exact_duplicates(hashes: np.ndarray) -> dict[int, int]:
    """Return {row: first row} for rows that share the hash of an earlier one: uint64 [rows, 2].

    8 bytes of each row are held besides, and its number where a hash repeats.
    """
    ordered = np.sort(hashes[:, 0])
    again = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    first: dict[tuple[int, int], int] = {}
    found = {}
    for start in range(0, len(hashes) if len(again) else 0, BLOCK_ROWS):
        block = hashes[start : start + BLOCK_ROWS]
        place = np.searchsorted(again[:-1], block[:, 0])
        for row in np.flatnonzero(again[place] == block[:, 0]).tolist():
            one, other = block[row].tolist()
            if (kept := first.setdefault((one, other), start + row)) != start + row:
                found[start + row] = kept
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
        held.frombytes(np.unique(gram_hashes(words_of(text), DUPLICATE_GRAM)).tobytes())
        ends.append(len(held))
    of_all = np.frombuffer(held, dtype=np.uint64) if held else np.zeros(0, dtype=np.uint64)
    shared, counts = repeated(of_all)
    index: dict[int, list[int]] = defaultdict(list)
    found: dict[int, int] = {}
    for row, (start, end) in enumerate(pairwise(ends)):
        own = of_all[start:end]
        # A gram that occurs once leads to no other row.
        place = np.searchsorted(shared[:-1], own)
        times = np.where(shared[place] == own, counts[place], 1) if len(shared) else own * 0
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


def contaminated(texts: Iterable[str], evaluation: Sequence[str]) -> dict[int, int]:
    """Return {row of ``texts``: row of ``evaluation``} for contaminated texts.

    A text is contaminated when its words equal an evaluation text's, or when the two share a run of
    13 words, numbers included and boilerplate left out. Texts below 13 words are compared as a
    whole: short generated problems share all of their words but the numbers. ``texts`` are iterated
    twice, and not held.
    """
    eval_words = [words_of(text) for text in evaluation]
    whole = {words: i for i, words in reversed(list(enumerate(eval_words)))}
    runs: dict[tuple[str, ...], int] = {}
    long = any(len(words) >= CONTAMINATION_GRAM for words in eval_words)
    boilerplate = Boilerplate(chain(eval_words, map(words_of, texts)) if long else ())
    for i, words in enumerate(eval_words):
        for run in _runs(words, boilerplate):
            runs.setdefault(run, i)
    found = {}
    for row, words in enumerate(map(words_of, texts)):
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
