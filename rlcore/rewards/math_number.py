r"""The value of an answer that is one number: integer, decimal, fraction, mixed number, percentage,
in digits or words.

Exact, in rational arithmetic: no library is needed for most answers of competitions.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from rlcore.rewards.math_signs import GROUP
from rlcore.rewards.math_words import number_in_words, scaled

_INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d*)?|\.\d+)"
_POWER = (
    r"(?:(?:\\times|\\cdot|\*|×) ?10 ?\^ ?(?:\{ ?([-+]?\d{1,2}) ?\}|([-+]?\d{1,2}))"
    r"|[eE]([-+]?\d{1,2}))"
)
_SIGNED = rf"[-+]? ?{_DECIMAL}"
_BRACED = rf"\{{ ?({_SIGNED}) ?\}}"
_LATEX_FRACTION = rf"\\frac ?(?:{_BRACED} ?{_BRACED}|(\d) ?(\d)|(\d) ?{_BRACED})"
_NUMBER = re.compile(rf"([-+]?) ?({_DECIMAL})(?: ?{_POWER})?")
_FRACTION = re.compile(rf"([-+]?) ?({_INTEGER}?) ?{_LATEX_FRACTION}")
_SLASHED = re.compile(rf"([-+]?) ?(?:({_INTEGER}) )?({_DECIMAL}) ?/ ?([-+]?{_DECIMAL})")
_REPEATING = re.compile(r"([-+]?) ?(\d*)\.(\d*) ?\\(?:overline|bar) ?(?:\{ ?(\d+) ?\}|(\d))")
_PERCENT = re.compile(
    r"(?:\\?%|(?:\\text(?:rm|normal)?|\\mathrm|\\mbox)\s*\{\s*(?:\\?%|per ?cent(?:age)?)\s*\}"
    r"|\bper ?cent(?:age)?)\s*$",
    re.IGNORECASE,
)
_SCALED = re.compile(r"(.*[\d.}]) ?([A-Za-z ]+)")
_ROUNDED = 6  # digits, of a decimal that stands for a fraction


@dataclass(frozen=True, slots=True)
class Number:
    """``value`` as written, before the percent sign divides it by 100; ``decimal``: written with a
    decimal point, and not repeating."""

    value: Fraction
    decimal: bool
    percent: bool

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
    plain = re.sub(r"\{,\}|\\!", lambda match: "," if match[0] == "{,}" else "", plain)
    plain = re.sub(r"\\[,;: ]|[~\s]|\\(?:left|right)(?![A-Za-z])", " ", plain)
    plain = re.sub(r"\\[dtc]frac", r"\\frac", plain.replace("−", "-"))
    plain = re.sub(" +", " ", plain).strip().replace(", ", ",")
    try:
        value = _value(plain)
        if value is None:
            value = _in_words(plain)
    except (ValueError, ZeroDivisionError):  # more digits than Python converts; no number
        return None
    if value is None:
        return None
    rounded = "." in plain and _REPEATING.fullmatch(plain) is None
    return Number(value, rounded, percent is not None)


def same_number(truth: Number, answer: Number, factor: Fraction = Fraction(1)) -> bool:
    r"""Return whether ``factor`` times ``answer`` equals ``truth``.

    50% is 1/2. A percent sign that one side leaves out is ignored above 1 (25 and 25%), as
    math-verify does for integers, but not below: .5 is no .5%. A decimal stands for a fraction that
    no decimal can be (.333333 for 1/3) if it is rounded to six digits or more; two decimals are
    equal if they are the same number.
    """
    answer = replace(answer, value=answer.value * factor)
    if truth.percent != answer.percent and truth.value == answer.value:
        return abs(truth.value) > 1 or not truth.value
    return truth.worth == answer.worth or _rounded(truth, answer)


def _rounded(truth: Number, answer: Number) -> bool:
    decimal, other = (truth, answer) if truth.decimal else (answer, truth)
    if not decimal.decimal or other.decimal or not other.worth:
        return False
    rest = other.worth.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    gap = abs(decimal.worth - other.worth)
    return rest > 1 and gap <= min(Fraction(1), abs(other.worth) * 10) / (2 * 10**_ROUNDED)


def _value(plain: str) -> Fraction | None:
    if (match := _NUMBER.fullmatch(plain)) is not None:
        sign, digits, *powers = match.groups()
        power = next((int(each) for each in powers if each), 0)
        return _signed(sign, _fraction(digits) * Fraction(10) ** power)
    if (match := _FRACTION.fullmatch(plain)) is not None:
        sign, whole, *parts = match.groups()
        above, below = (part for part in parts if part)
        return _mixed(sign, whole, _fraction(above), _fraction(below))
    if (match := _SLASHED.fullmatch(plain)) is not None:
        sign, whole, above, below = match.groups()
        return _mixed(sign, whole, _fraction(above), _fraction(below))
    if (match := _REPEATING.fullmatch(plain)) is not None:
        sign, whole, once, *again = match.groups()
        period = next(part for part in again if part)
        repeated = Fraction(int(period), 10 ** len(period) - 1)
        return _signed(sign, (int((whole + once) or "0") + repeated) / 10 ** len(once))
    return None


def _in_words(plain: str) -> Fraction | None:
    """Return the value of a number in words, or of one in digits that words scale."""
    text = re.sub(" +", " ", GROUP.sub(r" \1 ", plain)).strip()
    if (said := _SCALED.fullmatch(text)) is not None:
        value = _value(said[1].strip())
        return None if value is None else scaled(value, said[2].lower().split())
    sign, _, digits = text.lower().partition(" ")
    if sign in ("minus", "negative") and digits[:1].isdigit():
        value = _value(digits)
        return None if value is None else -value
    return number_in_words(text)


def _mixed(sign: str, whole: str | None, above: Fraction, below: Fraction) -> Fraction | None:
    if not whole:
        return _signed(sign, above / below)
    proper = above.denominator == below.denominator == 1 and 0 <= above < below
    return _signed(sign, _fraction(whole) + above / below) if proper else None


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _fraction(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", "").rstrip("."))
