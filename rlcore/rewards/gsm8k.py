"""GSM8K rule reward: the number after ``####``.

``strict`` agrees bit for bit with verl (volcengine/verl, verl/utils/reward_score/gsm8k.py, current
main: last match within the last 300 characters). ``numeric`` compares values: it also accepts
``#### 72.``, ``#### $72``, ``#### 72.0``, ``####72``, ``\\boxed{72}``, ``1 000``, ``7/2`` for
3.5, ``x = 72``, ``12 (1 dozen)``, and does not take an expression for the number that it begins
with (``rlcore.rewards.gsm8k_number``).
"""

import re
from decimal import Decimal, InvalidOperation

from rlcore.rewards.gsm8k_number import number_of, written
from rlcore.rewards.types import Reward, RewardRow, Scorer
from schemas.errors import UserError, did_you_mean
from schemas.outcomes import Outcome

STRICT_CHARACTERS = 300
MODES = ("strict", "numeric")

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")


def scorer(mode: str = "strict", format_score: float = 0.0) -> Scorer:
    """Return the reward function: 1 right, ``format_score`` wrong, 0 without an answer.

    ``mode``: "strict" or "numeric". Raises UserError for another.
    """
    if mode not in MODES:
        near = did_you_mean(str(mode), MODES)
        raise UserError(f"option mode = {mode!r} of reward 'gsm8k' must be strict or numeric{near}")

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
            return Reward(row.trajectory_id, Outcome.NO_ANSWER, 0.0, correct=False)
        return Reward(
            row.trajectory_id,
            Outcome.OK if right else Outcome.WRONG,
            1.0 if right else float(format_score),
            correct=right,
            answer=answer,
        )

    return score


def check_truth(ground_truth: str, mode: str = "strict", format_score: float = 0.0) -> None:
    """Raise UserError for a ground truth that no response can have, under the options of
    ``scorer``."""
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


def _truth(ground_truth: str) -> Decimal:
    """Return the value of a ground truth, without thousands separators, dollar signs and a final
    full stop."""
    plain = re.sub(r"[\s,$\\]", "", ground_truth).replace("−", "-").rstrip(".")
    try:
        value = Decimal(plain)
    except InvalidOperation:
        value = None
    if value is None or not value.is_finite():
        raise UserError(f"the ground_truth {ground_truth[:80]!r} is not a number")
    return value
