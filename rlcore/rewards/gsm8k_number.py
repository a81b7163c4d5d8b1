"""The one number that a response gives as its answer: ``72``, ``$1,000.00``, ``7 1/2``, ``72
thousand``, ``seventy-two``.

An expression is not the number that it begins with. The number may be followed by a unit or by what
is counted, and by nothing else (``rlcore.rewards.math_units``); a second number is allowed where it
is the first one in another unit (``12 (1 dozen)``). A name may come before it (``x = 72``), and a
sum that is right (``48 + 24 = 72``).
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction

from rlcore.boxed import is_cut_off
from rlcore.rewards.math_equation import sides_of
from rlcore.rewards.math_number import number_in
from rlcore.rewards.math_signs import in_latex
from rlcore.rewards.math_units import is_of, split_unit

# Every repetition is bounded or of a single character class, so matching stays linear on hostile
# text.
_MARKED = re.compile(r"####\s{0,8}")
_BOXED = re.compile(r"\\boxed\{\s{0,4}")
_LONGEST = 500  # characters of a line that is not one row of digits
_DIGITS = re.compile(r"[-+−]?[0-9]+(?:\.[0-9]*)?\.?")
_SPACES = re.compile(r"[^\S\n]+")
_ANNOUNCED = re.compile(r"(?:the )?(?:final )?answer(?: is)?\b\s?:?", re.IGNORECASE)
_WRAPPED = re.compile(
    r"(?:\\boxed\{(?P<box>[^{}]*(?:\{[^{}]*\}[^{}]*){0,4})\}|\\\((?P<paren>.*)\\\)"
    r"|\((?P<round>-?[^()]*)\)|(?P<mark>\*{1,3}|_{1,2}|`|\$)(?P<marked>.*)(?P=mark))(?P<stop>\.?)"
)
_NEXT_SENTENCE = re.compile(r"[.;!] (?!(?:Or|And|To)\b)(?=[A-Z])|####")
_LAST_NUMBER = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?(?=[^0-9]*$)")
_INDIAN = re.compile(r"[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?![0-9])")  # 1,00,000
_QUOTED = re.compile(r"(?<=[0-9])['’](?=[0-9]{3}(?![0-9]))")  # 1'000
_PERCENT = re.compile(r"\\?%$")
_FOREIGN = re.compile(r" ?[€£¥₹₩]$")
_SIGNED_MONEY = re.compile(r"^(\\?\$|[€£¥₹₩])\s?-")
_REMARK = re.compile(r"([^()]*) \(([^()]*)\)")
_SIZES: dict[str, tuple[Fraction | int, ...]] = {  # how many make one
    "%": (1, Fraction(1, 100)),
    "dozen": (12,),
    "pair": (2,),
    "couple": (2,),
    "score": (20,),
}
_OF_NUMBER = re.compile(r"(\\?\$?)([0-9.,]+) ?(%|[A-Za-z]{0,20})")
_COMPUTED = re.compile(r"[0-9 .,+\-*/()×÷·$]{1,80}")
_OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def number_of(response: str) -> Fraction | Decimal | None:
    """Return the number after the last ``####``, else in the last ``\\boxed{}``; None where that is
    not a single number. A ``####`` without a number is ignored. Numbers without a finite decimal
    form are returned as Fraction.
    """
    for line in _marked(response):
        value = _read(line)
        if value is not None:
            return value
        if _says_a_number(line):
            return None
    return None


def written(value: Fraction | Decimal) -> str:
    """Return the canonical form of a number: ``72``, not ``72.0`` or ``072``; ``3.5``, but
    ``7/3``."""
    text = str(value) if isinstance(value, Fraction) else format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _marked(response: str) -> Iterator[str]:
    """Yield the lines that may hold the answer, the last mark first, then the last boxes."""
    for mark in (_MARKED, _BOXED):
        if mark is _BOXED and is_cut_off(response):
            return
        for place in reversed(list(mark.finditer(response))):
            line = response[place.end() :].partition("\n")[0]
            yield _inside(line) if mark is _BOXED else line


def _says_a_number(line: str) -> bool:
    """Return whether a line that is no number holds one of the answer; ``check = 8 * 9`` names
    another."""
    return any(map(str.isdigit, line[:_LONGEST])) and not re.match(r"[A-Za-z ]{2,40}=", line)


def _read(line: str) -> Fraction | Decimal | None:
    plain = line.strip(" *_`$")
    if _DIGITS.fullmatch(plain):
        return Decimal(plain.replace("−", "-").rstrip("."))
    if len(line) > _LONGEST:
        return None
    text = _SPACES.sub(" ", in_latex(line)).strip()
    if any(sign.isdecimal() and not sign.isascii() for sign in text):
        return None
    first, *later = _NEXT_SENTENCE.split(text, maxsplit=1)
    value = _value(first.strip())
    if value is None:
        return None
    again = _LAST_NUMBER.search(later[0]) if later else None
    if again is not None and Fraction(again[0].replace(",", "")) != abs(value):
        return None
    return _decimal(value)


def _value(text: str, depth: int = 0) -> Fraction | None:
    """Return the number that the whole of ``text`` says, None where it says none."""
    text = _ANNOUNCED.sub("", text, count=1).strip() if _ANNOUNCED.match(text) else text
    text = text.removesuffix(".").strip(" *_`")
    if depth > 4 or not text:
        return None
    if (found := _WRAPPED.fullmatch(text)) is not None:
        inner = next(
            i for i in (found[n] for n in ("box", "paren", "round", "marked")) if i is not None
        )
        return _value(inner, depth + 1)
    if (found := _REMARK.fullmatch(text)) is not None:
        value = _value(found[1], depth + 1)
        return value if value is not None and _same(value, found[2]) else None
    if text.count(" or ") == 1:
        one, other = (_value(part, depth + 1) for part in text.split(" or "))
        return one if one == other else None
    text = split_unit(text.removeprefix("=").strip(), letters=True)[0]
    sides = sides_of(text, "")
    if sides is None:
        return _amount(text)
    value = _amount(sides[-1]) if sides else None
    return value if value is not None and all(_computed(s) == value for s in sides[:-1]) else None


def _amount(text: str) -> Fraction | None:
    """Return the number of a text of a number and its unit."""
    text = _FOREIGN.sub("", _QUOTED.sub("", _SIGNED_MONEY.sub(r"-\1", text)))
    text = _INDIAN.sub(lambda number: number[0].replace(",", ""), _PERCENT.sub("", text))
    number = number_in(split_unit(text, letters=True)[0])
    words, _, counted = text.rpartition(" ")
    if number is None and split_unit(f"1 {counted}")[1] is not None:  # twenty students
        number = number_in(words)
    return None if number is None or number.percent else number.value


def _computed(text: str) -> Fraction | None:
    """Return the value of a sum or product of numbers; None for other texts."""
    text = text.replace("\\cdot", "*").replace("\\times", "*")
    if not _COMPUTED.fullmatch(text):
        return _amount(text)
    plain = text.translate(str.maketrans({"×": "*", "·": "*", "÷": "/", "$": "", ",": ""}))
    try:
        return _of_node(ast.parse(plain.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _of_node(node: ast.AST) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            return Fraction(str(node.value))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_of_node(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_of_node(left), _of_node(right))
    raise ValueError("no arithmetic")


def _same(value: Fraction, remark: str) -> bool:
    """Return whether a remark gives the same number, perhaps in another unit, or the unit alone:
    the ratio of the two numbers must be that of their units."""
    if (other := _value(remark)) is not None and other == value and _has_a_name(remark):
        return True
    found = _OF_NUMBER.fullmatch(remark)
    if found is None:
        return not any(map(str.isdigit, remark)) and split_unit(f"1 {remark}")[1] is not None
    try:
        count = value / Fraction(found[2].replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return False
    unit = found[3].lower() or ("dollar" if found[1] else "")
    if (size := _SIZES.get(unit.removesuffix("s"))) is not None:
        return count in size
    return bool(unit) and is_of(unit, count)


def _has_a_name(remark: str) -> bool:
    """Return whether a remark is more than digits, as the footnote in 72 (72) would be."""
    return not remark.strip().isdigit()


def _decimal(value: Fraction) -> Fraction | Decimal:
    """Return ``value`` as a Decimal where it is finite."""
    places = value.denominator.bit_length()
    if 10**places % value.denominator:
        return value
    digits = str(abs(value.numerator) * 10**places // value.denominator)
    return Decimal((int(value < 0), tuple(int(digit) for digit in digits), -places))


def _inside(rest: str) -> str:
    """Return ``rest`` up to the brace that closes a group opened before it."""
    depth = 0
    for place, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return rest[:place]
    return rest
