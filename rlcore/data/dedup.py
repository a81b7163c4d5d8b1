"""Duplicates within training data, and training data that is also in the evaluation data."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from rlcore.data.words import Boilerplate, grams, words_of

DUPLICATE_GRAM = 5
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


def near_duplicates(texts: Sequence[str], jaccard: float) -> dict[int, int]:
    """Return {row: earlier kept row} whose sets of word 5-grams have at least this Jaccard index.

    Exact and deterministic: an inverted index over each row's rarest 5-grams, of which two rows
    that are similar enough must share one (prefix filtering, Bayardo et al. 2007). Rows are
    compared with kept rows only, so the first of a cluster stays.
    """
    sets = [set(grams(words_of(text), DUPLICATE_GRAM)) for text in texts]
    frequency = Counter(gram for grams_of_row in sets for gram in grams_of_row)
    index: dict[tuple[str, ...], list[int]] = defaultdict(list)
    found: dict[int, int] = {}
    for row, own in enumerate(sets):
        rarest = sorted(own, key=lambda gram: (frequency[gram], gram))
        rarest = rarest[: len(own) - math.ceil(jaccard * len(own)) + 1]
        candidates = sorted({other for gram in rarest for other in index[gram]})
        match = next((o for o in candidates if _similar(own, sets[o], jaccard)), None)
        if match is not None and own != {()}:
            found[row] = match
            continue
        for gram in rarest:
            index[gram].append(row)
    return found


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


def _similar(one: set[tuple[str, ...]], other: set[tuple[str, ...]], jaccard: float) -> bool:
    shared = len(one & other)
    return shared >= jaccard * (len(one) + len(other) - shared)


def _runs(words: tuple[str, ...], boilerplate: Boilerplate) -> list[tuple[str, ...]]:
    if len(words) < CONTAMINATION_GRAM:
        return []
    kept = boilerplate.strip(words)
    return grams(kept, CONTAMINATION_GRAM) if len(kept) >= CONTAMINATION_GRAM else []
