r"""The one number that a response gives as its answer: ``72``, ``$1,000.00``, ``7 1/2``, ``1e3``.

An expression is not the number that it begins with. The number may be followed by a unit or a
remark, but not by an operator, a second number, or a word that changes it (``72 or 80``, ``5
million``); a second number is allowed where it is the first one in another unit, in parentheses
(``12 (1 dozen)``). A name may come before it (``x = 72``).
"""

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction

from rlcore.boxed import is_cut_off
from rlcore.rewards.math_units import is_of

# Every repetition is bounded or of a single character class, so matching stays linear on hostile
# text.
_SPACE = r"[^\S\n]"
_CURRENCY = r"(?:\\?\$|[€£¥₹₩]|(?:USD|EUR|GBP|Rs\.?)(?![A-Za-z]))"
_DECORATION = rf"(?:\\boxed\{{|\\text\{{|\\\(|{_CURRENCY}|[\s$*_`]){{0,8}}"
_START = (
    rf"(?P<sign>[-+−]?){_SPACE}?{_CURRENCY}?{_SPACE}?(?P<inner_sign>[-−]?)"
    r"(?=[.,]*[0-9]|\\[dt]?frac)"
)
_WORD = r"(?!(?:not|or|and|to|minus|negative)\b)[A-Za-z]{2,20}"
_NAME = (  # x =, total cost =, answer:
    rf"(?P<name>(?:(?:[A-Za-z]|{_WORD}(?: {_WORD}){{0,3}}){_SPACE}{{0,3}}=(?!=)"
    rf"|(?i:(?:final )?answer:))(?:\\boxed\{{|{_SPACE}|[$*_`]){{0,8}})?"
)
_MARKED = re.compile(rf"####{_DECORATION}{_NAME}{_START}")
_BOXED = re.compile(rf"\\boxed\{{[\s$]{{0,4}}{_NAME}{_START}")

_SEPARATOR = r"(?:,|\{,\}|\\[,;! ]|~|['’]|[^\S\n])"
_PLAIN = re.compile(
    rf"(?:[0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+(?![0-9])"  # 1,000 and 1 000
    r"|[0-9]{1,2}(?:,[0-9]{2})*,[0-9]{3}(?![0-9])"  # 1,00,000
    r"|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
)
_EXPONENT = re.compile(r"[eE][-+]?[0-9]{1,3}(?![0-9])")
_OVER = re.compile(rf"{_SPACE}?[/⁄]{_SPACE}?([0-9]{{1,50}})(?![0-9])")
_FRACTION = re.compile(
    rf"{_SPACE}?(?:([0-9]{{1,50}})[/⁄]([0-9]{{1,50}})(?![0-9])"
    r"|\\[dt]?frac\{([0-9]{1,50})\}\{([0-9]{1,50})\})"
)

_UNIT_POWER = re.compile(r"(?<=[A-Za-z])(?:\^?\{?[23]\}?(?![0-9])|[²³])")
_NEXT_SENTENCE = re.compile(rf"[.;!]{_SPACE}+(?!(?:Or|And|To)\b)(?=[A-Z])|####")
_SAME = re.compile(  # the number in another unit
    rf"{_SPACE}\((\$?)([0-9]{{1,3}}(?:,[0-9]{{3}}){{1,4}}|[0-9]{{1,15}})(\.[0-9]{{1,9}})?"
    rf"{_SPACE}?(%|[A-Za-z]{{2,20}}|(?<=[0-9]))\)"
)
_SIZES: dict[str, tuple[Fraction | int, ...]] = {  # how many make one
    "%": (1, Fraction(1, 100)),
    "dozen": (12,),
    "pair": (2,),
    "couple": (2,),
    "score": (20,),
}
_OTHER_NUMBER = re.compile(
    rf"{_SPACE}*(?:[+−×÷·^!=<>√π±]|\*[A-Za-z\\(]|[-–][A-Za-z]?\b(?![A-Za-z])|/[A-Za-z]\b"
    r"|\\(?:times|cdot|div|pi|sqrt|[dt]?frac|pm)\b"
    r"|(?:or|to|and|plus|minus|times|over|hundred|thousand|million|billion|trillion)\b|[kKxyz]\b)"
)


def number_of(response: str) -> Fraction | Decimal | None:
    """Return the number after the last ``####``, else in the last ``\\boxed{}``; None where that is
    not a single number. A ``####`` without a number is ignored. Numbers without a finite decimal
    form are returned as Fraction.
    """
    for mark in (_MARKED, _BOXED):
        for place in reversed(list(mark.finditer(response))):
            if mark is _BOXED and is_cut_off(response):
                return None
            value = _leading_number(response[place.end() :].partition("\n")[0])
            if value is None and place["name"]:
                continue  # a name of something else than a number
            negative = place["sign"] in ("-", "−") or place["inner_sign"] != ""
            if value is None or not negative:
                return value
            # A minus sign before a Decimal would round it.
            return value.copy_negate() if isinstance(value, Decimal) else -value
    return None


def written(value: Fraction | Decimal) -> str:
    """Return the canonical form of a number: ``72``, not ``72.0`` or ``072``; ``3.5``, but
    ``7/3``."""
    text = str(value) if isinstance(value, Fraction) else format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _leading_number(line: str) -> Fraction | Decimal | None:
    """Return the number that ``line`` begins with, None where the text after it changes it."""
    plain = _PLAIN.match(line)
    whole = "0" if plain is None else re.sub(r"[^0-9.]", "", plain[0])
    end = 0 if plain is None else plain.end() - plain[0].endswith(".")
    value: Fraction | Decimal | None = None if plain is None else Decimal(whole)
    short = whole.isdecimal() and len(whole) <= 50
    if plain is not None and (exponent := _EXPONENT.match(line, end)) is not None:
        value, end = Decimal(whole + exponent[0]), exponent.end()
    elif plain is not None and short and (over := _OVER.match(line, end)) is not None:
        value, end = _ratio(int(whole), int(over[1])), over.end()
    elif short and (added := _FRACTION.match(line, end)) is not None:
        top, bottom = (int(digits) for digits in added.groups() if digits is not None)
        value, end = _ratio(int(whole) * bottom + top, bottom), added.end()
    return None if value is None or _goes_on(_without_same(value, line[end:])) else value


def _ratio(top: int, bottom: int) -> Fraction | Decimal | None:
    """Return top / bottom, as a Decimal where it is finite; None for division by zero."""
    if bottom == 0:
        return None
    ratio = Fraction(top, bottom)
    places = ratio.denominator.bit_length()
    if 10**places % ratio.denominator:
        return ratio
    digits = str(ratio.numerator * 10**places // ratio.denominator)
    return Decimal((0, tuple(int(digit) for digit in digits), -places))


def _without_same(value: Fraction | Decimal, rest: str) -> str:
    """Return ``rest``, the text after a number, without a remark that gives the same number in
    another unit: the ratio of the two must be that of their units."""
    remark = _SAME.search(rest)
    if remark is None or not (remark[1] or remark[4]):
        return rest
    other = Fraction(remark[2].replace(",", "") + (remark[3] or ""))
    unit = remark[4].lower() or "dollar"
    count = Fraction(value) / other if other else Fraction(0)
    if (size := _SIZES.get(unit.removesuffix("s"))) is not None:
        same = count in size
    else:
        same = is_of(unit, count) or (count == 1 and _OTHER_NUMBER.match(unit) is None)
    return rest[: remark.start()] + " " + rest[remark.end() :] if same else rest


def _goes_on(rest: str) -> bool:
    """Return whether ``rest``, the text after a number on its line, changes the number."""
    remark = _inside(_NEXT_SENTENCE.split(rest, maxsplit=1)[0])
    if _OTHER_NUMBER.match(remark.lstrip("*} ") if remark[:1] == "*" else remark):
        return True
    kinds = {unicodedata.category(character) for character in _UNIT_POWER.sub("", remark)}
    return not kinds.isdisjoint({"Nd", "Nl", "No"})


def _inside(rest: str) -> str:
    """Return ``rest`` up to the brace that closes a group opened before it."""
    depth = 0
    for place, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return rest[:place]
    return rest
