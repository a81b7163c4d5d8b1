"""How many rows may be unscored before a stage stops, and what each function contributed.

Errors are failures of our side: reward code, judge, engine (rows "error" and "aborted"). Timeouts
depend on speed: another machine could have scored the row. Each has its own bound. A bad response
of the policy gets a verdict and is neither.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from schemas.errors import UserError
from schemas.outcomes import Outcome
from schemas.rl import RewardSection

if TYPE_CHECKING:
    import polars as pl


def part_metrics(rewards: "pl.DataFrame") -> dict[str, float]:
    """Return ``reward/<function>/mean`` of a Rewards table: unweighted, over the rows that have it.

    A single function gets no metric, as it would equal ``critic/score/mean``.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for parts in rewards["parts"]:
        for name, value in json.loads(parts).items():
            values[name].append(value)
    if len(values) < 2:
        return {}
    return {f"reward/{name}/mean": sum(seen) / len(seen) for name, seen in sorted(values.items())}


ERRORS = (Outcome.ERROR.value, Outcome.ABORTED.value)
TIMEOUTS = (Outcome.TIMEOUT.value,)


class RewardFailureError(UserError):
    """Too many rows could not be scored."""


class RewardTimeoutError(RewardFailureError):
    """The clock ended the scoring of too many rows."""


def check_unscored(
    outcomes: Sequence[tuple[str, str]],
    section: RewardSection,
    *,
    rows: str = "rows",
    of: int | None = None,
) -> None:
    """Raise RewardFailureError when too many of ``outcomes`` (outcome and detail of each row) are
    errors, RewardTimeoutError when timeouts; ``rows`` says what they are, in the plural.

    ``of``: the total number of rows, where ``outcomes`` are those of the first ones only: raises as
    soon as the bound is exceeded even if all other rows are scored.
    """
    total = len(outcomes) if of is None else of
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
        if failed > bound * total:
            (outcome, detail), count = reasons.most_common(1)[0]
            raise (RewardTimeoutError if kinds == TIMEOUTS else RewardFailureError)(
                f"{failed} of {total} {rows} could not be scored ({failed / total:.1%}"
                f"{', the others were not tried' if len(outcomes) < total else ''}), above"
                f" reward.{name} = {bound:g}; the most frequent reason, on {count} of them, is"
                f" {outcome}: {detail[:200]}; {remedy} or raise the bound"
            )


def check_any_scored(outcomes: Sequence[tuple[str, str]], *, rows: str) -> None:
    """Raise RewardFailureError, or RewardTimeoutError, where not one of ``outcomes`` (outcome and
    detail of each row) is of a scored row: there is nothing to compare, whatever the bounds allow.
    """
    lost = Counter(reason for reason in outcomes if reason[0] in (*ERRORS, *TIMEOUTS))
    if not outcomes or lost.total() < len(outcomes):
        return
    late = sum(count for (outcome, _), count in lost.items() if outcome in TIMEOUTS)
    (outcome, detail), count = lost.most_common(1)[0]
    error, remedy = RewardFailureError, "correct the reward function"
    if late == len(outcomes):
        error, remedy = RewardTimeoutError, "raise reward.timeout_s or make the function faster"
    raise error(
        f"none of {len(outcomes)} {rows} could be scored, {late} of them timed out; the most"
        f" frequent reason, on {count}, is {outcome}: {detail[:200]}; {remedy}"
    )
