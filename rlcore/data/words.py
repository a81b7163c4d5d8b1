"""Texts as normalised words, without the boilerplate that many rows share."""

import hashlib
import re
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

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


def grams(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    """Return every run of ``length`` words; the whole text as one run where it is shorter."""
    if len(words) <= length:
        return [tuple(words)]
    return [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]


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
