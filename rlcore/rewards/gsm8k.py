"""GSM8K rule reward: the number after ``####``.

``strict`` agrees bit for bit with verl (volcengine/verl, verl/utils/reward_score/gsm8k.py, current
main: last match within the last 300 characters). ``numeric`` compares values, as the reward
``math`` reads them: also ``$72.0``, ``\\boxed{72}``, ``7/2`` for 3.5, ``6 dozen``. A unit, what is
counted, or the number in another unit may follow (``12 (1 dozen)``); a name (``x = 72``), or a sum
that is right (``48 + 24 = 72``), may come before.
"""

import re
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction

from rlcore.rewards.boxed import is_cut_off, last_boxed
from rlcore.rewards.math_answer import bare, readings_of, same_value
from rlcore.rewards.math_number import has_finite_decimals, number_in
from rlcore.rewards.math_text import in_latex
from rlcore.rewards.math_units import split_unit
from rlcore.rewards.types import Reward, RewardRow, Scorer
from schemas.errors import UserError, did_you_mean

STRICT_CHARACTERS = 300
MODES = ("strict", "numeric")

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
# Every repetition is bounded or of a single character class, so matching stays linear on hostile
# text.
_MARKED = re.compile(r"####\s{0,8}((?:(?!####)[^\n])*)")
_LONGEST = 500  # characters of a line that is not one row of digits
_DIGITS = re.compile(r"[-+−]?[0-9]+(?:\.[0-9]*)?\.?")
_WRAPPED = re.compile(r"\\boxed\{([^{}]*(?:\{[^{}]*\}[^{}]*){0,4})\}|\((-?[^()]*)\)")
_NEXT_SENTENCE = re.compile(r"[.;!] (?!(?:Or|And|To)\b)(?=[A-Z])")
_LAST_NUMBER = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?(?=[^0-9]*$)")
_INDIAN = re.compile(r"[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?![0-9])")  # 1,00,000


def scorer(mode: str = "strict", format_score: float = 0.0) -> Scorer:
    """Return the reward function: 1 right, ``format_score`` wrong, 0 without an answer.

    ``mode``: "strict" or "numeric". Raises UserError for another.
    """
    if mode not in MODES:
        near = did_you_mean(str(mode), MODES)
        raise UserError(f"option mode = {mode!r} of reward 'gsm8k' must be strict or numeric{near}")
    if mode == "numeric":  # seconds of import, which no row should pay for
        import rlcore.rewards.math_formula  # noqa: F401

    def score(row: RewardRow) -> Reward:
        if row.ground_truth is None:
            raise UserError("the row has no ground_truth")
        if mode == "strict":
            answer = extract_strict(row.response)
            right = answer == row.ground_truth
        else:
            number, truth = number_of(row.response), _truth(row.ground_truth)
            answer = None if number is None else written(number)
            right = number == truth
        if answer is None:
            return Reward.no_answer(row)
        return Reward.of(row, 1.0 if right else float(format_score), right, answer=answer)

    return score


def check_truth(ground_truth: str, mode: str = "strict", format_score: float = 0.0) -> None:
    """Raise UserError for a ground truth that no response can have by the options of ``scorer``."""
    if mode == "numeric":
        _truth(ground_truth)
    elif extract_strict(f"#### {ground_truth}") != ground_truth:
        raise UserError(
            f"the ground_truth {ground_truth[:80]!r} is not what mode strict reads after '####': a"
            " sign, digits and full stops, no commas"
        )


def extract_strict(response: str) -> str | None:
    """Return the last ``#### <number>`` of the last 300 characters, commas dropped, like verl."""
    matches = _STRICT.findall(response[-STRICT_CHARACTERS:])
    return matches[-1].replace(",", "").replace("$", "") if matches else None


def number_of(response: str) -> Fraction | Decimal | None:
    """Return the number after the last ``####``, else in the last ``\\boxed{}``; None where that is
    not a single number. A ``####`` without a number is ignored.
    """
    box = None if is_cut_off(response) else last_boxed(response)
    for line in [*reversed(_MARKED.findall(response)), *([] if box is None else [box])]:
        if (value := _read(line)) is not None:
            return value
        # A line that names another number, ``check = 8 * 9``, says nothing of the answer.
        holds_one = any(map(str.isdigit, line[:_LONGEST]))
        if holds_one and not re.match(r"[A-Za-z ]{2,40}=", line):
            return None
    return None


def written(value: Fraction | Decimal) -> str:
    """Return the canonical form of a number: ``72``, not ``72.0`` or ``072``; ``3.5``; ``7/3``."""
    if isinstance(value, Fraction):
        if not has_finite_decimals(value):
            return str(value)
        # Of a line, it has under 2,000 digits.
        value = Context(prec=2000).divide(Decimal(value.numerator), Decimal(value.denominator))
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _read(line: str) -> Fraction | Decimal | None:
    """Return the number that ``line`` gives; what follows in other sentences may repeat it."""
    plain = line.strip(" *_`$")
    if _DIGITS.fullmatch(plain):
        return Decimal(plain.replace("−", "-").rstrip("."))
    if len(line) > _LONGEST:
        return None
    text = re.sub(r"\s+", " ", in_latex(line)).strip()
    if any(sign.isdecimal() and not sign.isascii() for sign in text):
        return None
    first, *later = _NEXT_SENTENCE.split(text, maxsplit=1)
    while (wrapped := _WRAPPED.fullmatch(first := bare(first))) is not None:
        first = wrapped[1] or wrapped[2] or ""
    readings = readings_of(_INDIAN.sub(lambda number: number[0].replace(",", ""), first))
    if not readings or not all(same_value(each, readings[-1])[0] for each in readings[:-1]):
        return None
    number = number_in(split_unit(re.sub(r"\\?%$", "", readings[-1]), letters=True)[0])
    if number is None or number.percent:
        return None
    again = _LAST_NUMBER.search(later[0]) if later else None
    if again is not None and Fraction(again[0].replace(",", "")) != abs(number.value):
        return None
    return number.value


def _truth(ground_truth: str) -> Decimal:
    """Return the value of a ground truth, without separators, dollar signs and a final stop."""
    plain = re.sub(r"[\s,$\\]", "", ground_truth).replace("−", "-").rstrip(".")
    try:
        value = Decimal(plain)
    except InvalidOperation:
        value = None
    if value is None or not value.is_finite():
        raise UserError(f"the ground_truth {ground_truth[:80]!r} is not a number")
    return value
