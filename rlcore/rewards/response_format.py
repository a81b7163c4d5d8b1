"""The reward ``format``: whether a response has the form that a regular expression describes.

It never says whether the answer is right. A pattern that backtracks for ever ends at the time limit
of its row, as any reward function does.
"""

import re

from rlcore.rewards.types import Reward, RewardRow, Scorer
from schemas.errors import UserError, did_you_mean

MATCHES = ("whole", "part")


def scorer(pattern: str, match: str = "whole") -> Scorer:
    """Return the reward function: 1 where the response matches ``pattern``, else 0.

    ``match``: "whole" response, or any "part" of it. A dot also matches line breaks. Raises
    UserError for a pattern that Python cannot compile, and for another ``match``.
    """
    if match not in MATCHES:
        near = did_you_mean(str(match), MATCHES)
        raise UserError(f"option match = {match!r} of reward 'format' must be whole or part{near}")
    if not isinstance(pattern, str):
        raise UserError(
            f"option pattern = {pattern!r} of reward 'format' is not text; write it in quotes"
        )
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(
            f"option pattern = {pattern[:80]!r} of reward 'format' is no regular expression of"
            f" Python ({error}); fix it, or put a backslash before characters meant literally"
        ) from None
    matches = compiled.fullmatch if match == "whole" else compiled.search

    def score(row: RewardRow) -> Reward:
        found = matches(row.response) is not None
        detail = "" if found else "the response does not have the form of the pattern"
        return Reward.of(row, float(found), detail=detail)

    return score
