"""Texts as normalised words, without the boilerplate that many rows share."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

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


class Boilerplate:
    """Word 5-grams that occur in at least 2 % (and 20) of ``texts``: instructions, templates.

    They are left out so that sharing an instruction does not make two questions duplicates, or one
    contaminated.
    """

    def __init__(self, texts: Iterable[tuple[str, ...]]) -> None:
        distinct = set(texts)
        counts: Counter[tuple[str, ...]] = Counter()
        for words in distinct:
            if len(words) >= BOILERPLATE_GRAM:
                counts.update(set(grams(words, BOILERPLATE_GRAM)))
        least = max(BOILERPLATE_ROWS, BOILERPLATE_SHARE * len(distinct))
        self.grams = {gram for gram, count in counts.items() if count >= least}

    def strip(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``words`` without those covered by such a 5-gram."""
        covered: set[int] = set()
        for i, gram in enumerate(grams(words, BOILERPLATE_GRAM)):
            if gram in self.grams:
                covered.update(range(i, i + BOILERPLATE_GRAM))
        return tuple(word for i, word in enumerate(words) if i not in covered)
