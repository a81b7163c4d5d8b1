r"""The unit behind a mathematical answer: split off, and converted where both sides name one.

A unit that only one side names is ignored, as verl's rule for MATH drops units
(verl/utils/reward_score/math_reward.py, ``strip_string``); two that differ are compared: 5 m is
500 cm, and neither 5 cm nor 500 m. Behind a number are a known unit, or what is counted (a plural
with words before it that change no number); anything else, as in ``5\text{ is wrong}``, is no unit,
and the text no number. One letter is a unit in ``\text{}`` alone: ``7m`` is a product.
"""

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from rlcore.rewards.math_signs import GROUP, UNIT_LETTERS, UPRIGHT
from rlcore.rewards.math_words import NUMBERS, SCALES

# Dimension -> names of each unit -> its size in the first one.
_TABLE: dict[str, dict[str, Fraction]] = {
    "length": {
        "m meter metre": Fraction(1),
        "mm millimeter millimetre": Fraction(1, 1000),
        "cm centimeter centimetre": Fraction(1, 100),
        "km kilometer kilometre": Fraction(1000),
        "in inch inche": Fraction(254, 10_000),
        "ft foot feet": Fraction(3048, 10_000),
        "yd yard": Fraction(9144, 10_000),
        "mi mile": Fraction(1_609_344, 1000),
    },
    "mass": {
        "g gram gm": Fraction(1),
        "mg milligram": Fraction(1, 1000),
        "kg kilogram": Fraction(1000),
        "lb pound": Fraction(45_359_237, 100_000),
        "oz ounce": Fraction(45_359_237, 1_600_000),
    },
    "time": {
        "s sec second": Fraction(1),
        "min minute": Fraction(60),
        "h hr hour": Fraction(3600),
        "day": Fraction(86_400),
        "week": Fraction(604_800),
    },
    "money": {"dollar usd buck": Fraction(1), "cent ¢": Fraction(1, 100)},
    "angle": {"degree deg": Fraction(1)},
    "year": {"year yr": Fraction(1), "month": Fraction(1, 12)},
}
_LITRES = {
    "l liter litre": Fraction(1, 1000),
    "ml milliliter millilitre": Fraction(1, 10**6),
    "cc": Fraction(1, 10**6),
}
_SHORT = {"mph": "mile / hour", "kph": "km / hour", "kmh": "km / hour", "sq": "square"}
_POWERS = {"square": 2, "cubic": 3, "squared": 2, "cubed": 3}
# They name no unit.
_GENERIC = {
    *("unit", "of", "the", "a", "an", "in", "each", "every", "total", "altogether"),
    *("different", "distinct", "possible", "old", "long", "tall", "wide", "high", "deep"),
    "away",
}
# Behind a number they change its value, or say that it is not the answer.
_CHANGES = NUMBERS | {
    *("and", "or", "nor", "not", "no", "never", "but", "to", "plus", "minus", "times"),
    *("over", "mod", "modulo", "base", "factorial", "root", "percent", "percentage"),
    *("pi", "less", "lesser", "more", "fewer", "greater", "than", "below", "above"),
    *("under", "at", "least", "most", "about", "almost", "nearly", "approximately"),
    *("roughly", "around", "between", "is", "isn", "aren", "are", "was", "were", "be"),
    *("wrong", "false", "incorrect", "right", "correct", "if", "unless", "except"),
    *("without", "short", "off", "point", "opposite", "inverse", "reciprocal"),
    *("remainder", "maybe", "perhaps", "instead", "actually", "guess", "kidding"),
    *("sorry", "few", "many", "too", "extra", "missing", "lakh", "crore", "double", "triple"),
    *("quadruple", "fold", "nil", "naught"),
}
_ORDINAL = re.compile(r".*(?:teenth|tieth|twelfth|eleventh|hundredth|thousandth|illionth)s?")
_COUNTED = {  # without an s
    *("people", "children", "men", "women", "feet", "teeth", "geese", "mice", "fish"),
    *("sheep", "deer", "cattle", "dice", "data", "euro", "yen", "pair", "way"),
}
_KNOWN: dict[str, tuple[Counter[str], Fraction]] = {
    name: (Counter({dimension: 1}), size)
    for dimension, names in _TABLE.items()
    for all_names, size in names.items()
    for name in all_names.split()
} | {
    name: (Counter({"length": 3}), size)
    for all_names, size in _LITRES.items()
    for name in all_names.split()
}

_TEXT = rf"{UPRIGHT}\{{[^{{}}]*\}}"
_GAP = r"(?:\\[,;:! ]|~|\s)"
_TEXT_UNIT = re.compile(
    rf"{_GAP}*{_TEXT}(?:{_GAP}|{_TEXT}|/|\\cdot(?![A-Za-z])|\^\{{?-?[1-9]\}}?|[²³])*$"
)
_WORD_UNIT = re.compile(r"(?<=[\d}.])\s*([A-Za-z¢](?:[A-Za-z¢ /²³{}.\d]|\^\{?-?\d)*)$")
_CIRCLE = re.compile(r"(?:\^\s*\{?\s*\\circ\s*\}?|°|\\degree)\s*$")
_CURRENCY = re.compile(
    r"^(-?)\s*(?:(?:\\?\$|\\text\s*\{\s*\\?\$\s*\})|([€£¥₹₩]|(?:USD|EUR|GBP|Rs\.?)(?![A-Za-z])))\s*"
)
_AMOUNT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([A-Za-z]+)")
_PARTS = re.compile(r"[A-Za-z¢]+|[/^]|-?\d+")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: its dimensions with exponents and its ``size``, or ``words`` that are no known
    one."""

    dimensions: tuple[tuple[str, int], ...] = ()
    size: Fraction = Fraction(1)
    words: frozenset[str] = frozenset()


_FOREIGN_MONEY = Unit(words=frozenset({"money"}))


def split_unit(
    text: str, *, letters: bool = False, also: frozenset[str] = frozenset()
) -> tuple[str, Unit | None]:
    r"""Return ``text`` without the unit at its end (or the sign of a currency before it), and the
    unit; ``text`` as it is where what stands there is no unit.

    ``letters``: one letter behind a number is a unit, too, where it is the name of one; ``also``:
    words that are of a unit.

    >>> split_unit(r"5 \text{ cm}")[0], split_unit("7m")[0], split_unit(r"5\text{ million cups}")[0]
    ('5', '7m', '5 million')
    """
    if (sign := _CURRENCY.match(text)) is not None and text[sign.end() :].strip():
        rest = split_unit(text[sign.end() :])[0]
        return sign[1] + rest, _unit("dollar") if sign[2] is None else _FOREIGN_MONEY
    if (circle := _CIRCLE.search(text)) is not None:
        return text[: circle.start()].rstrip(), _unit("degree")
    found = _TEXT_UNIT.search(text)
    if found is not None and text[: found.start()].strip():
        written = re.sub(r"\\(?:text|math|mbox)[a-z]*|\\cdot|\\.|[~{}]", " ", found[0])
    elif (found := _WORD_UNIT.search(text)) is not None:
        written = re.sub("[{}]", "", found[1])
        if not letters and len(re.match("[A-Za-z¢]*", written)[0]) == 1 and written != "¢":  # type: ignore[index]
            return text, None
    else:
        return text, None
    scale, rest = _scale(written.replace("²", "^2").replace("³", "^3"))
    head = f"{text[: found.start()].rstrip()} {scale}".rstrip()
    if not rest:
        return head, None
    unit = _unit(rest, also)
    return (text, None) if unit is None else (head, unit)


def _scale(written: str) -> tuple[str, str]:
    """Return the words of ``written`` that scale a number, and what follows them."""
    words = written.split()
    count = next((i for i, word in enumerate(words) if word.lower() not in SCALES), len(words))
    return " ".join(words[:count]), " ".join(words[count:])


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
    least = known[-1]
    total = sum(Fraction(n) * unit.size for (n, _), unit in zip(parts, known, strict=True))
    return str(total / least.size), least


def ratio(truth: Unit | None, answer: Unit | None) -> Fraction | None:
    """Return by what an answer's number is multiplied to be in the unit of ``truth``; None where
    the units cannot be converted."""
    if truth is None or answer is None:
        return Fraction(1)
    for unit in (truth, answer):
        if not unit.dimensions and not unit.words:  # a generic one, as "square units"
            return Fraction(1)
    comparable = truth.words <= answer.words or answer.words <= truth.words
    if truth.dimensions != answer.dimensions or not comparable:
        return None
    return answer.size / truth.size


def is_of(unit: str, count: Fraction) -> bool:
    """Return whether one ``unit`` is ``count`` of another one: an hour is 60 minutes.

    >>> is_of("hours", Fraction(60)), is_of("hours", Fraction(61))
    (True, False)
    """
    known = _KNOWN.get(_singular(unit))
    return known is not None and any(
        dimensions == known[0] and size * count == known[1] for dimensions, size in _KNOWN.values()
    )


def _unit(written: str, also: frozenset[str] = frozenset()) -> Unit | None:
    """Return the unit that is ``written`` in words; None where one of them is no unit's."""
    if _PARTS.sub("", written).strip(" .·*'’-"):
        return None
    words = re.sub("[A-Za-z]+", lambda match: _SHORT.get(match[0].lower(), match[0]), written)
    dimensions: Counter[str] = Counter()
    size, unknown, counted = Fraction(1), set[str](), False
    sign, ahead, last, plain = 1, 1, "", False
    for part in _PARTS.findall(words):
        word = part.lower()
        if word in ("/", "per"):
            sign = -1
        elif word in _POWERS and word.endswith("d") and last:
            dimensions, size = _raised(dimensions, size, last, sign * (_POWERS[word] - 1))
        elif word in ("square", "cubic"):
            ahead = _POWERS[word]
        elif word == "^":
            continue
        elif word.lstrip("-").isdecimal():
            if not (last or plain) or len(word) > 2:
                return None
            dimensions, size = _raised(dimensions, size, last, sign * (int(word) - 1))
        elif (name := _singular(word)) in _KNOWN and (
            len(part) > 1 or part in UNIT_LETTERS | {"¢"}
        ):
            dimensions, size = _raised(dimensions, size, name, sign * ahead)
            ahead, last = 1, name
        elif (
            {word, name} & _CHANGES or _ORDINAL.fullmatch(word) or (len(word) == 1 and word != "a")
        ):
            return None
        elif name not in _GENERIC:
            plain = False
            unknown.add(name)
            counted = counted or word != name or name in _COUNTED or word in also
            last = ""
        else:
            last, plain = "", name == "unit"
    if unknown and not counted:
        return None
    kept = tuple(sorted((key, power) for key, power in dimensions.items() if power))
    return Unit(kept, size, frozenset(unknown))


def _raised(
    dimensions: Counter[str], size: Fraction, name: str, power: int
) -> tuple[Counter[str], Fraction]:
    """Return dimensions and size, times the unit ``name`` to ``power``; "" is none."""
    if not name:
        return dimensions, size
    of_name, size_of_name = _KNOWN[name]
    more = Counter({key: value * power for key, value in of_name.items()})
    dimensions = dimensions.copy()
    dimensions.update(more)
    return dimensions, size * size_of_name**power


def _singular(word: str) -> str:
    return word if word in _KNOWN or not word.endswith("s") else word[:-1]
