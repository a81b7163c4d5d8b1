"""How much may go unscored before a stage stops.

Errors are our faults: reward code, judge, engine (rows "error" and "aborted"). Timeouts are the
clock's: another machine could have scored the row. Each has a bound of its own. What a policy wrote
has a verdict and is neither.
"""

from collections import Counter
from collections.abc import Sequence

from schemas.errors import UserError
from schemas.rl import RewardSection

ERRORS = ("error", "aborted")
TIMEOUTS = ("timeout",)


class RewardFailureError(UserError):
    """Too many rows could not be scored."""


def check_unscored(
    outcomes: Sequence[tuple[str, str]], section: RewardSection, *, rows: str = "rows"
) -> None:
    """Raise RewardFailureError when too many of ``outcomes`` (outcome and detail of each row) are
    errors, or timeouts; ``rows`` says what they are, in the plural."""
    bounds = (
        ("max_error_fraction", section.max_error_fraction, ERRORS, "correct the reward function"),
        (
            "max_timeout_fraction",
            section.max_timeout_fraction,
            TIMEOUTS,
            f"raise reward.timeout_s = {section.timeout_s:g}, make the reward function faster",
        ),
    )
    for name, bound, kinds, remedy in bounds:
        reasons = Counter(reason for reason in outcomes if reason[0] in kinds)
        failed = reasons.total()
        if failed > bound * len(outcomes):
            (outcome, detail), count = reasons.most_common(1)[0]
            raise RewardFailureError(
                f"{failed} of {len(outcomes)} {rows} could not be scored"
                f" ({failed / len(outcomes):.1%}), above reward.{name} = {bound:g}; the most"
                f" frequent reason, on {count} of them, is {outcome}: {detail[:200]}; {remedy} or"
                " raise the bound"
            )
