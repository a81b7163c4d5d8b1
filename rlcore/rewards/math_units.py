r"""The unit of a mathematical answer: split off, and converted where both sides name one.

A unit that only one side names is ignored, as verl's rule for MATH drops units
(verl/utils/reward_score/math_reward.py, ``strip_string``); two that differ are compared: 5 m is
500 cm, and neither 5 cm nor 500 m. Behind a number are a known unit, or what is counted (a plural
with words before it that change no number); anything else, as in ``5\text{ is wrong}``, is no unit,
and the text no number. One letter is a unit in ``\text{}`` alone: ``7m`` is a product. Texts are in
the writing of ``math_text``.
"""

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from rlcore.rewards.math_number import NUMBERS, SCALES, number_in_words
from rlcore.rewards.math_text import GROUP, UNIT_LETTERS

# Dimension and exponent -> names of each unit -> its size in the first one.
_TABLE: dict[tuple[str, int], dict[str, Fraction | int]] = {
    ("length", 1): {
        "m meter metre": 1,
        "mm millimeter millimetre": Fraction(1, 1000),
        "cm centimeter centimetre": Fraction(1, 100),
        "km kilometer kilometre": 1000,
        "in inch inche": Fraction(254, 10_000),
        "ft foot feet": Fraction(3048, 10_000),
        "yd yard": Fraction(9144, 10_000),
        "mi mile": Fraction(1_609_344, 1000),
    },
    ("length", 3): {
        "l liter litre": Fraction(1, 1000),
        "ml milliliter millilitre cc": Fraction(1, 10**6),
    },
    ("mass", 1): {
        "g gram gm": 1,
        "mg milligram": Fraction(1, 1000),
        "kg kilogram": 1000,
        "lb pound": Fraction(45_359_237, 100_000),
        "oz ounce": Fraction(45_359_237, 1_600_000),
    },
    ("time", 1): {
        "s sec second": 1,
        "min minute": 60,
        "h hr hour": 3600,
        "day": 86_400,
        "week": 604_800,
    },
    ("money", 1): {"dollar usd buck": 1, "cent ¢": Fraction(1, 100)},
    ("angle", 1): {"degree deg": 1},
    ("year", 1): {"year yr": 1, "month": Fraction(1, 12)},
    ("", 0): {"unit": 1},
}
_KNOWN = {
    name: (*dimension, Fraction(size))
    for dimension, units in _TABLE.items()
    for names, size in units.items()
    for name in names.split()
}
_SHORT = {"mph": "mile / hour", "kph": "km / hour", "kmh": "km / hour", "sq": "square"}
_BEFORE = {"square": 2, "cubic": 3}
_BEHIND = {"squared": 2, "cubed": 3}
# They name no unit.
_GENERIC = """
    of the a an in each every total altogether different distinct possible old long tall wide high
    deep away
"""
# Behind a number they change its value, or say that it is not the answer.
_CHANGING = """
    and or nor not no never but to plus minus times over mod modulo base factorial root percent
    percentage pi less lesser more fewer greater than below above under at least most about almost
    nearly approximately roughly around between is isn aren are was were be wrong false incorrect
    right correct if unless except without short off point opposite inverse reciprocal remainder
    maybe perhaps instead actually guess kidding sorry few many too extra missing lakh crore double
    triple quadruple fold nil naught
"""
_WITHOUT_S = """
    people children men women feet teeth geese mice fish sheep deer cattle dice data euro yen pair
    way
"""
_NO_UNIT, _COUNTED = frozenset(_GENERIC.split()), frozenset(_WITHOUT_S.split())
_CHANGES = NUMBERS | frozenset(_CHANGING.split())
_ORDINAL = re.compile(r".*(?:teenth|tieth|twelfth|eleventh|hundredth|thousandth|illionth)s?")

_TEXT_UNIT = re.compile(
    r" *\\text\{[^{}]*\}(?: |\\text\{[^{}]*\}|/|\\cdot(?![A-Za-z])|\^\{?-?[1-9]\}?)*$"
)
_WORD_UNIT = re.compile(r"(?<=[\d}.])\s*([A-Za-z¢](?:[A-Za-z¢ /{}.\d]|\^\{?-?\d)*)$")
_CIRCLE = re.compile(r"(?:\^\s*\{?\s*\\circ\s*\}?|°|\\degree)\s*$")
_CURRENCY = re.compile(
    r"^(-?)\s*(?:(?:\\?\$|\\text\{\s*\\?\$\s*\})|([€£¥₹₩]|(?:USD|EUR|GBP|Rs\.?)(?![A-Za-z])))"
    r"\s*(-?)"
)
_CURRENCY_BEHIND = re.compile(r"\s*[€£¥₹₩]$")
_AMOUNT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([A-Za-z]+)")
_PARTS = re.compile(r"[A-Za-z¢]+|[/^]|-?\d+")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: its dimensions with exponents and its ``size``, or ``words`` that name none."""

    dimensions: tuple[tuple[str, int], ...] = ()
    size: Fraction = Fraction(1)
    words: frozenset[str] = frozenset()


_FOREIGN_MONEY = Unit(words=frozenset({"money"}))


def split_unit(
    text: str, *, letters: bool = False, also: frozenset[str] = frozenset()
) -> tuple[str, Unit | None]:
    r"""Return ``text`` without the unit at its end (or the sign of a currency before it), and the
    unit; ``text`` as it is where what is there is no unit.

    ``letters``: one letter behind a number is a unit, too, where it is the name of one; ``also``:
    words that are of a unit.

    >>> split_unit(r"5 \text{ cm}")[0], split_unit("7m")[0], split_unit(r"5\text{ million cups}")[0]
    ('5', '7m', '5 million')
    """
    if (sign := _CURRENCY.match(text)) is not None and text[sign.end() :].strip():
        rest = split_unit(text[sign.end() :])[0]
        unit = _unit("dollar") if sign[2] is None else _FOREIGN_MONEY
        return sign[1] + sign[3] + rest, unit
    if (sign := _CURRENCY_BEHIND.search(text)) is not None:
        return text[: sign.start()], _FOREIGN_MONEY
    if (circle := _CIRCLE.search(text)) is not None:
        return text[: circle.start()].rstrip(), _unit("degree")
    found = _TEXT_UNIT.search(text)
    if found is not None and text[: found.start()].strip():
        written = re.sub(r"\\text|\\cdot|[{}]", " ", found[0])
    elif (found := _WORD_UNIT.search(text)) is not None:
        written = re.sub("[{}]", "", found[1])
        if not letters and re.match("[A-Za-z](?![A-Za-z¢])", written):
            return text, None
    else:  # twenty students
        number, _, counted = text.rpartition(" ")
        unit = None if number_in_words(number) is None else _unit(counted, also)
        return (text, None) if unit is None else (number, unit)
    words = written.split()
    scales = next((i for i, word in enumerate(words) if word.lower() not in SCALES), len(words))
    head = " ".join([text[: found.start()].rstrip(), *words[:scales]])
    if scales == len(words):
        return head, None
    unit = _unit(" ".join(words[scales:]), also)
    return (text, None) if unit is None else (head, unit)


def summed(text: str) -> tuple[str, Unit] | None:
    r"""Return a sum of numbers of one kind, and its unit: 90 and min of ``1 h 30 min``;
    None where ``text`` is none.

    >>> summed("4 min 30 s")[0]
    '270'
    """
    plain = GROUP.sub(r" \1 ", text)
    parts = _AMOUNT.findall(plain)
    if len(parts) < 2 or _AMOUNT.sub("", plain).replace("and", "").strip(" ,"):
        return None
    known = [unit for _, name in parts if (unit := _unit(name)) is not None and unit.dimensions]
    same_kind = len(known) == len(parts) and len({unit.dimensions for unit in known}) == 1
    if not same_kind or any(a.size <= b.size for a, b in pairwise(known)):
        return None
    total = sum(Fraction(n) * unit.size for (n, _), unit in zip(parts, known, strict=True))
    return str(total / known[-1].size), known[-1]


def ratio(truth: Unit | None, answer: Unit | None) -> Fraction | None:
    """Return by what an answer's number is multiplied to be in the unit of ``truth``; None where
    the units cannot be converted."""
    for unit in (truth, answer):
        if unit is None or not (unit.dimensions or unit.words):  # a generic one: "square units"
            return Fraction(1)
    assert truth is not None and answer is not None, "that was looked at"  # noqa: PT018
    comparable = truth.words <= answer.words or answer.words <= truth.words
    if truth.dimensions != answer.dimensions or not comparable:
        return None
    return answer.size / truth.size


def is_of(unit: Unit, count: Fraction) -> bool:
    """Return whether one ``unit`` is ``count`` of another one: an hour is 60 minutes.

    >>> is_of(split_unit("1 hours")[1], Fraction(60)), is_of(split_unit("1 hours")[1], Fraction(61))
    (True, False)
    """
    return any(
        unit.dimensions == ((name, power),) and size * count == unit.size
        for name, power, size in _KNOWN.values()
    )


def _unit(written: str, also: frozenset[str] = frozenset()) -> Unit | None:
    """Return the unit that is ``written`` in words; None where one of them is no unit's."""
    if _PARTS.sub("", written).strip(" .·*'’-"):
        return None
    spelled = re.sub("[A-Za-z]+", lambda match: _SHORT.get(match[0].lower(), match[0]), written)
    powers, words, counted = Counter[str](), set[str](), False
    sign, ahead, last = 1, 1, ""
    for part in _PARTS.findall(spelled):
        word = part.lower()
        name = word if word in _KNOWN or not word.endswith("s") else word[:-1]
        if word in ("/", "per"):
            sign = -1
        elif word in _BEHIND and last:
            powers[last] += sign * (_BEHIND[word] - 1)
        elif word in _BEFORE:
            ahead = _BEFORE[word]
        elif word.lstrip("-").isdecimal():
            if not last or len(word) > 2:
                return None
            powers[last] += sign * (int(word) - 1)
        elif name in _KNOWN and (len(part) > 1 or part in UNIT_LETTERS | {"¢"}):
            powers[name] += sign * ahead
            ahead, last = 1, name
        elif (
            {word, name} & _CHANGES
            or _ORDINAL.fullmatch(word)
            or (len(word) == 1 and word not in "a^")
        ):
            return None
        elif word != "^":
            last = ""
            if name not in _NO_UNIT:
                words.add(name)
                counted = counted or word != name or name in _COUNTED or word in also
    if words and not counted:
        return None
    dimensions, size = Counter[str](), Fraction(1)
    for name, power in powers.items():
        dimension, exponent, of_one = _KNOWN[name]
        dimensions[dimension] += exponent * power
        size *= of_one**power
    kept = tuple(sorted((key, power) for key, power in dimensions.items() if power))
    return Unit(kept, size, frozenset(words))
