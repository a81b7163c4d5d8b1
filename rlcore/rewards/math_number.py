r"""The value of an answer that is one number, in digits or words: integer, decimal, fraction, mixed
number, percentage, ``seventy-two``, ``5 million``, ``two thirds``, ``8 squared``.

Exact, in rational arithmetic: no library is needed for most answers of competitions. Texts are in
the writing of ``math_text``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from rlcore.rewards.math_text import GROUP

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
_ONES = {word: value for value, word in enumerate(_SMALL.split())}
_ROUND = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = {word: 10 * value for value, word in enumerate(_ROUND.split(), start=2)}
_THOUSANDS = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = "third fourth fifth sixth seventh eighth ninth tenth"
_MULTIPLES = {
    **_THOUSANDS,
    **{word: Fraction(1, part) for part, word in enumerate(_PARTS.split(), start=3)},
    "hundredth": Fraction(1, 100),
    "thousandth": Fraction(1, 1000),
    "quarter": Fraction(1, 4),
    "hundred": 100,
    "dozen": 12,
    "score": 20,
}
# Word -> by what it multiplies the number before it.
_SIZES = {f"{word}{end}": Fraction(size) for word, size in _MULTIPLES.items() for end in ("", "s")}
_SIZES |= {"tens": Fraction(10), "half": Fraction(1, 2), "halves": Fraction(1, 2)}
_POWERS = {"squared": 2, "cubed": 3}
_WORDS_OF_SIGN = {"minus": -1, "negative": -1, "plus": 1, "positive": 1}
SCALES = frozenset({*_SIZES, *_POWERS})
NUMBERS = frozenset({*_ONES, *_TENS, *SCALES, *_WORDS_OF_SIGN})

_INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d*)?|\.\d+)"
_POWER = (
    r"(?:(?:\\times|\\cdot|\*) ?10 ?\^ ?(?:\{ ?([-+]?\d{1,2}) ?\}|([-+]?\d{1,2}))"
    r"|[eE]([-+]?\d{1,2}))"
)
_NUMBER = re.compile(rf"([-+]?) ?({_DECIMAL})(?: ?{_POWER})?")
_IN_GROUP = rf"(?:\{{ ?([-+]? ?{_DECIMAL}) ?\}}|(\d))"
_LATEX_FRACTION = re.compile(rf"\\frac ?{_IN_GROUP} ?{_IN_GROUP}")
_SLASHED = re.compile(rf"([-+]?) ?(?:({_INTEGER}) )?([-+]?{_DECIMAL}) ?/ ?([-+]?{_DECIMAL})")
_REPEATING = re.compile(r"([-+]?) ?(\d*)\.(\d*) ?\\(?:overline|bar) ?(?:\{ ?(\d+) ?\}|(\d))")
_PERCENT = re.compile(
    r"(?:\\?%|\\text\{\s*(?:\\?%|per ?cent(?:age)?)\s*\}|\bper ?cent(?:age)?)\s*$", re.IGNORECASE
)
_SCALED = re.compile(r"(.*[\d.}]) ?([A-Za-z ]+)")
_ROUNDED = 6  # digits, of a decimal that denotes a fraction


@dataclass(frozen=True, slots=True)
class Number:
    """``value`` as written, before the percent sign divides it by 100; ``decimal``: written with a
    decimal point, and not repeating."""

    value: Fraction
    decimal: bool = False
    percent: bool = False

    @property
    def worth(self) -> Fraction:
        """The value, percent sign included."""
        return self.value / 100 if self.percent else self.value


def number_in(text: str) -> Number | None:
    r"""Return the number that the whole of ``text`` is; None where it is none, or something else.

    >>> number_in(r"-1\frac{1}{2}").value, number_in(r"12.5\%").worth, number_in("5 million").value
    (Fraction(-3, 2), Fraction(1, 8), Fraction(5000000, 1))
    """
    percent = _PERCENT.search(text)
    plain = text[: percent.start()] if percent else text
    repeats = "\\" in plain and "." in plain and _REPEATING.fullmatch(plain.strip()) is not None
    plain = _LATEX_FRACTION.sub(_slashed, plain)
    plain = re.sub(r"\s+", " ", plain).strip().replace(", ", ",")
    try:
        if (value := _in_digits(plain)) is None:
            value = _in_words(plain)
    except (ValueError, ZeroDivisionError):  # more digits than Python converts; no number
        value = None
    if value is None:
        return None
    return Number(value, "." in plain and not repeats, percent is not None)


def same_number(truth: Number, answer: Number, factor: Fraction = Fraction(1)) -> bool:
    r"""Return whether ``factor`` times ``answer`` equals ``truth``.

    50% is 1/2. A percent sign that one side leaves out is ignored above 1 (25 and 25%), as
    math-verify does for integers, but not below: .5 is no .5%. A decimal denotes a fraction that
    no decimal can be (.333333 for 1/3) if it is rounded to six digits or more; two decimals are
    equal if they are the same number.
    """
    answer = replace(answer, value=answer.value * factor)
    if truth.percent != answer.percent and truth.value == answer.value:
        return abs(truth.value) > 1 or not truth.value
    return truth.worth == answer.worth or _rounded(truth, answer)


def has_finite_decimals(value: Fraction) -> bool:
    """Return whether a decimal can be ``value``: its denominator divides a power of ten."""
    return 10 ** value.denominator.bit_length() % value.denominator == 0


def _rounded(truth: Number, answer: Number) -> bool:
    decimal, other = (truth, answer) if truth.decimal else (answer, truth)
    if not decimal.decimal or other.decimal or has_finite_decimals(other.worth):
        return False
    gap = abs(decimal.worth - other.worth)
    return gap <= min(Fraction(1), abs(other.worth) * 10) / (2 * 10**_ROUNDED)


def _slashed(found: re.Match[str]) -> str:
    r"""Return ``\frac{a}{b}`` as `` a/b``, as the numbers of mixed ones are written."""
    above, below = (re.sub("[ ,]", "", part) for part in found.groups() if part)
    return f" {above}/{below}"


def _in_digits(plain: str) -> Fraction | None:
    if (match := _NUMBER.fullmatch(plain)) is not None:
        sign, digits, *powers = match.groups()
        power = next((int(each) for each in powers if each), 0)
        return _signed(sign, _fraction(digits) * Fraction(10) ** power)
    if (match := _SLASHED.fullmatch(plain)) is not None:
        sign, whole, *parts = match.groups()
        above, below = map(_fraction, parts)
        if not whole:
            return _signed(sign, above / below)
        proper = above.denominator == below.denominator == 1 and 0 <= above < below
        return _signed(sign, _fraction(whole) + above / below) if proper else None
    if (match := _REPEATING.fullmatch(plain)) is not None:
        sign, whole, once, *again = match.groups()
        period = next(part for part in again if part)
        repeated = Fraction(int(period), 10 ** len(period) - 1)
        return _signed(sign, (int((whole + once) or "0") + repeated) / 10 ** len(once))
    return None


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _fraction(digits: str) -> Fraction:
    return Fraction(re.sub("[, ]", "", digits).rstrip("."))


def _in_words(plain: str) -> Fraction | None:
    """Return the value of a number in words, or of one in digits that words scale."""
    text = re.sub(" +", " ", GROUP.sub(r" \1 ", plain)).strip()
    if (said := _SCALED.fullmatch(text)) is not None:
        value = _in_digits(said[1].strip())
        return None if value is None else scaled(value, said[2].lower().split())
    sign, _, digits = text.lower().partition(" ")
    if sign in ("minus", "negative") and digits[:1].isdigit():
        value = _in_digits(digits)
        return None if value is None else -value
    return number_in_words(text)


def scaled(value: Fraction, words: Sequence[str]) -> Fraction | None:
    """Return ``value`` with each of ``words`` applied to it in order; None where one is no scale.

    >>> scaled(Fraction(5), ["million"]), scaled(Fraction(8), ["squared"])
    (Fraction(5000000, 1), Fraction(64, 1))
    """
    if len(words) > 3 or abs(value) > 10**15 or not SCALES.issuperset(words):
        return None
    for word in words:
        value = value * _SIZES[word] if word in _SIZES else value ** _POWERS[word]
    return value


def number_in_words(text: str) -> Fraction | None:
    """Return the number that the whole of ``text`` says in words; None where it says none.

    >>> number_in_words("minus seventy-two"), number_in_words("seven and a half")
    (Fraction(-72, 1), Fraction(15, 2))
    """
    words = text.lower().replace("-", " ").split()
    if not words or len(words) > 20:
        return None
    if words[0] in _WORDS_OF_SIGN:
        value = number_in_words(" ".join(words[1:])) if words[1:2] != words[:1] else None
        return None if value is None else _WORDS_OF_SIGN[words[0]] * value
    whole, _, part = " ".join(words).rpartition(" and ")
    added = _said(part.split()) if whole else None
    if added is None or not 0 < added < 1:
        whole, added = " ".join(words), Fraction(0)
    value = _said([word for word in whole.split() if word != "and"])
    return None if value is None else value + added


def _said(words: list[str]) -> Fraction | None:
    """Return the value of words without "and": of 1 to 999 times thousands, scaled in the end."""
    if words[:1] in (["a"], ["an"]) and words[1:2] and words[1] in SCALES:
        words = ["one", *words[1:]]
    total, group, least, place = 0, None, 10**15, 0
    for word in words:
        below_ten = (group or 0) % 100 > 10 and (group or 0) % 10 == 0  # twenty one, not ten one
        if word in _ONES and (
            group is None
            or (_ONES[word] > 0 and (group % 100 == 0 or (below_ten and _ONES[word] < 10)))
        ):
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
    return None if group is None else scaled(Fraction(total + group), words[place:])
