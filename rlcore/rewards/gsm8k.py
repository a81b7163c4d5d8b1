"""GSM8K rule reward (SPEC R1): the number after ``####``.

``strict`` agrees bit for bit with verl (volcengine/verl, verl/utils/reward_score/gsm8k.py, current
main: last match within the last 300 characters). ``numeric`` compares values, so it also accepts
``#### 72.``, ``#### $72``, ``#### 72.0``, ``####72`` and ``\\boxed{72}``.
"""

import re
from decimal import Decimal, InvalidOperation

from rlcore.rewards.types import Reward, RewardRow, Scorer
from schemas.errors import UserError, did_you_mean

STRICT_CHARACTERS = 300
MODES = ("strict", "numeric")

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
# Every repeat is bounded or of one class, so matching stays linear on hostile text.
_DECORATION = r"(?:\\boxed\{|\\text\{|\\\(|\\\$|[\s$*]){0,8}"
_NUMBER = r"(?P<number>[-+−]?(?:\s?\\?\$)?\s?[0-9.,]*[0-9][0-9.,]*)"
_MARKED = re.compile(rf"####{_DECORATION}{_NUMBER}")
_BOXED = re.compile(rf"\\boxed\{{[\s$]{{0,4}}{_NUMBER}")


def scorer(mode: str = "strict", format_score: float = 0.0) -> Scorer:
    """Return the reward function: 1 right, ``format_score`` wrong, 0 without an answer.

    ``mode``: "strict" or "numeric". Raises UserError for another.
    """
    if mode not in MODES:
        near = did_you_mean(str(mode), MODES)
        raise UserError(f"option mode = {mode!r} of reward 'gsm8k' must be strict or numeric{near}")
    extract = extract_strict if mode == "strict" else extract_numeric

    def score(row: RewardRow) -> Reward:
        if row.ground_truth is None:
            raise UserError("the row has no ground_truth")
        answer = extract(row.response)
        if answer is None:
            return Reward(row.trajectory_id, "no_answer", 0.0, correct=False)
        if mode == "strict":
            right = answer == row.ground_truth
        else:
            right = parse_number(answer) == _truth(row.ground_truth)
        return Reward(
            row.trajectory_id,
            "ok" if right else "wrong",
            1.0 if right else float(format_score),
            correct=right,
            answer=answer,
        )

    return score


def extract_strict(response: str) -> str | None:
    """Return the last ``#### <number>`` of the last 300 characters, commas dropped, like verl."""
    matches = _STRICT.findall(response[-STRICT_CHARACTERS:])
    return matches[-1].replace(",", "").replace("$", "") if matches else None


def extract_numeric(response: str) -> str | None:
    """Return the number after the last ``####``, else in the last ``\\boxed{}``, else None.

    Written one way (``72``, not ``72.0``, ``$72`` or ``072``), so that answers can be counted.
    """
    for pattern in (_MARKED, _BOXED):
        for match in reversed(list(pattern.finditer(response))):
            value = parse_number(match["number"])
            if value is not None:
                text = format(value, "f")
                return text.rstrip("0").rstrip(".") if "." in text else text
    return None


def parse_number(text: str) -> Decimal | None:
    """Return the value of ``text``; thousands separators, dollar signs, a last stop dropped."""
    plain = re.sub(r"[\s,$\\]", "", text).replace("−", "-").rstrip(".")
    try:
        return Decimal(plain)
    except InvalidOperation:
        return None


def _truth(ground_truth: str) -> Decimal:
    value = parse_number(ground_truth)
    if value is None or not value.is_finite():
        raise UserError(f"the ground_truth {ground_truth[:80]!r} is not a number")
    return value
