"""Duplicates within training data, and training data that is also in the evaluation data, by
normalised words without the boilerplate that many rows share."""

import hashlib
import math
import re
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
import polars as pl

_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)*|[-+*/^%=<>]")
BOILERPLATE_GRAM = 5
BOILERPLATE_SHARE = 0.02  # of distinct texts: instructions and templates, not content
BOILERPLATE_ROWS = 20


def words_of(text: str) -> tuple[str, ...]:
    """Return lower-case words, numbers and arithmetic signs of ``text`` (NFKC), in order.

    >>> words_of("Let's add 1,000 + 2.5!")
    ("let's", 'add', '1,000', '+', '2.5')
    """
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).lower()))


def gram_hashes(words: Sequence[str], length: int) -> np.ndarray:
    """Return a hash (uint64) of every run of ``length`` words, at most 16, in order; of the whole
    text where it is shorter, of none without words."""
    if not words:
        return np.zeros(0, dtype=np.uint64)
    hashes = np.array([_word_hash(word) for word in words], dtype=np.uint64)
    length = min(len(words), length)
    windows = np.lib.stride_tricks.sliding_window_view(hashes, length)
    return windows @ _FACTORS[:length]  # modulo 2^64


def repeated(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes that occur more than once, ascending, and how often each does."""
    ordered = np.sort(hashes)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    found, counts = np.unique(again, return_counts=True)
    return found, counts + 1


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


_word_hash = lru_cache(2**17)(_hash)
# Of the places in a gram; any that are random and odd.
_FACTORS = np.array([_hash(f"place {place}") | 1 for place in range(16)], dtype=np.uint64)


class Boilerplate:
    """Word 5-grams that occur in at least 2 % (and 20) of ``texts``: instructions, templates.

    They are left out so that sharing an instruction does not make two questions duplicates, or one
    contaminated. Hashes are held, 8 bytes of each 5-gram and 16 for a while, and no text.
    """

    def __init__(self, texts: Iterable[tuple[str, ...]]) -> None:
        held, distinct = array("Q"), set[int]()
        for words in texts:
            name = _hash(" ".join(words))
            if name not in distinct:
                distinct.add(name)
                if len(words) >= BOILERPLATE_GRAM:
                    grams_of_text = np.unique(gram_hashes(words, BOILERPLATE_GRAM))
                    held.frombytes(grams_of_text.tobytes())
        least = max(BOILERPLATE_ROWS, BOILERPLATE_SHARE * len(distinct))
        found, counts = repeated(np.array(held, dtype=np.uint64))
        self._grams = found[counts >= least]

    def strip(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``words`` without those covered by such a 5-gram."""
        if len(words) < BOILERPLATE_GRAM or not len(self._grams):
            return words
        hashes = gram_hashes(words, BOILERPLATE_GRAM)
        nearest = self._grams[np.searchsorted(self._grams[:-1], hashes)]
        covered = {
            place
            for start in np.flatnonzero(nearest == hashes).tolist()
            for place in range(start, start + BOILERPLATE_GRAM)
        }
        return tuple(word for i, word in enumerate(words) if i not in covered)


DUPLICATE_GRAM = 5
CONTAMINATION_GRAM = 13  # as in GPT-3's decontamination (Brown et al. 2020, appendix C)


def text_hash(text: str) -> bytes:
    """Return 16 bytes that texts share which are equal but for white space."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()


def exact_duplicates(hashes: pl.DataFrame) -> dict[int, int]:
    """Return {row: first row} for rows whose hash, of all columns, is that of an earlier one."""
    # numpy's sort holds 97 bytes a row at its peak, groups of polars 250.
    rows = np.rec.fromarrays([column.to_numpy() for column in hashes])
    _, first, group = np.unique(rows, return_index=True, return_inverse=True)
    repeats = np.flatnonzero(first[group] != np.arange(len(rows)))
    return dict(zip(repeats.tolist(), first[group][repeats].tolist(), strict=True))


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
        similar = (
            o for o in candidates if _similar(grams_of_row, of_all[ends[o] : ends[o + 1]], jaccard)
        )
        match = next(similar, None)
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
    runs: dict[int, int] = {}
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


def _runs(words: tuple[str, ...], boilerplate: Boilerplate) -> list[int]:
    """Return the hashes of the runs of 13 words of a text, none where it is shorter."""
    if len(words) < CONTAMINATION_GRAM:
        return []
    kept = boilerplate.strip(words)
    whole = len(kept) >= CONTAMINATION_GRAM
    return gram_hashes(kept, CONTAMINATION_GRAM).tolist() if whole else []
