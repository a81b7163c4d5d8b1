"""Numbers in words, and words behind a number that change it: ``seventy-two``, ``5 million``, ``two
thirds``, ``8 squared``."""

import re
from collections.abc import Sequence
from fractions import Fraction

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
_ONES = {word: value for value, word in enumerate(_SMALL.split())}
_TENS = {
    word: 10 * value
    for value, word in enumerate(
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], start=2
    )
}
_THOUSANDS = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = ["half", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
# Word -> by what it multiplies the number before it.
_SIZES: dict[str, Fraction] = {
    **{word: Fraction(size) for word, size in _THOUSANDS.items()},
    "hundred": Fraction(100),
    "dozen": Fraction(12),
    "score": Fraction(20),
    "tens": Fraction(10),
    "dozens": Fraction(12),
    "hundreds": Fraction(100),
    **{word: Fraction(1, value) for value, word in enumerate(_PARTS, start=2)},
    **{f"{word}s": Fraction(1, value) for value, word in enumerate(_PARTS[1:], start=3)},
    "halves": Fraction(1, 2),
    "quarter": Fraction(1, 4),
    "quarters": Fraction(1, 4),
    **{f"hundredth{end}": Fraction(1, 100) for end in ("", "s")},
    **{f"thousandth{end}": Fraction(1, 1000) for end in ("", "s")},
}
_POWERS = {"squared": 2, "cubed": 3}
_SIGNS = {"minus": -1, "negative": -1, "plus": 1, "positive": 1}
SCALES = frozenset({*_SIZES, *_POWERS})
NUMBERS = frozenset({*_ONES, *_TENS, *SCALES, *_SIGNS})
_WORD = re.compile(r"[A-Za-z]+")


def scaled(value: Fraction, words: Sequence[str]) -> Fraction | None:
    """Return ``value`` with each of ``words`` applied to it in turn; None where one is no scale.

    >>> scaled(Fraction(5), ["million"]), scaled(Fraction(8), ["squared"])
    (Fraction(5000000, 1), Fraction(64, 1))
    """
    if len(words) > 3 or abs(value) > 10**15:
        return None
    for word in words:
        if word in _SIZES:
            value *= _SIZES[word]
        elif word in _POWERS:
            value **= _POWERS[word]
        else:
            return None
    return value


def number_in_words(text: str) -> Fraction | None:
    """Return the number that the whole of ``text`` says in words; None where it says none.

    >>> number_in_words("minus seventy-two"), number_in_words("seven and a half")
    (Fraction(-72, 1), Fraction(15, 2))
    """
    words = text.lower().replace("-", " ").split()
    if not words or len(words) > 20 or not all(map(_WORD.fullmatch, words)):
        return None
    if words[0] in _SIGNS:
        value = number_in_words(" ".join(words[1:])) if words[1:2] != words[:1] else None
        return None if value is None else _SIGNS[words[0]] * value
    whole, _, part = " ".join(words).rpartition(" and ")
    if whole and (added := _said(part.split())) is not None and 0 < added < 1:
        value = _said([word for word in whole.split() if word != "and"])
        return None if value is None else value + added
    return _said([word for word in words if word != "and"])


def _said(words: list[str]) -> Fraction | None:
    """Return the value of words without "and": of 1 to 999 times thousands, scaled in the end."""
    if words[:1] in (["a"], ["an"]) and words[1:2] and words[1] in SCALES:
        words = ["one", *words[1:]]
    total, group, least, place = 0, None, 10**15, 0
    for word in words:
        if word in _ONES and (group is None or _room(group, _ONES[word])):
            group = (group or 0) + _ONES[word]
        elif word in _TENS and (group is None or group % 100 == 0):
            group = (group or 0) + _TENS[word]
        elif word == "hundred" and group is not None and 0 < group < 10:
            group *= 100
        elif word in _THOUSANDS and group is not None and _THOUSANDS[word] < least:
            least = _THOUSANDS[word]
            total, group = total + group * least, 0
        else:
            break
        place += 1
    if group is None:
        return None
    return scaled(Fraction(total + group), words[place:])


def _room(group: int, ones: int) -> bool:
    """Return whether a number below 20 may follow what was said: twenty one, and not ten one."""
    return ones > 0 and (group % 100 == 0 or (ones < 10 and group % 10 == 0 and group % 100 > 10))
