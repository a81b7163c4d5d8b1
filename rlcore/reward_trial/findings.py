"""What is wrong with a reward that was tried, a sentence each. Pure."""

from collections.abc import Iterator

import polars as pl

from rlcore.reward_trial.figures import rank_correlation, reasons, signals
from rlcore.reward_trial.rows import OTHER, OWN
from rlcore.reward_trial.score import Tried
from rlcore.rewards.unscored import RewardFailureError, check_any_scored, check_unscored
from schemas.outcomes import Outcome
from schemas.rl import RewardSection

FLIPPED = -0.5  # rank correlation with the other reward
BY_LENGTH = 0.95  # rank correlation with the number of sampled tokens, of either sign
_NONE = "the reward function returned None"
_MISTYPED = ("UserError: the reward function returned", "UserError: the batch function returned")


def findings(
    tried: Tried,
    section: RewardSection,
    pair: tuple[pl.DataFrame, pl.DataFrame] | None,
    against: str,
) -> list[str]:
    """Return a sentence per problem of a reward, those first that leave rows without a score.

    ``section``: whose limits the rows were scored under; ``pair``: rows that the reward ``against``
    has scored, too, and what it said of them (``same_rows``).
    """
    rows = tried.rows
    found = [*_failures(tried, section), *_constant(rows)]
    found += _by_prompt(rows)
    if pair is not None:
        found += _flipped(*pair, against)
    return [*found, *_by_length(rows)]


def ends_a_run(rows: pl.DataFrame, section: RewardSection) -> bool:
    """Return whether a run whose rewards fail as on ``rows`` would end: more of them have no score
    than ``section`` allows, or all. Rows that the engine aborted say nothing of the reward."""
    asked = rows.filter(pl.col("outcome") != Outcome.ABORTED.value)
    outcomes = asked.select("outcome", "detail").rows()
    try:
        check_unscored(outcomes, section)
        check_any_scored(outcomes, rows="rows")
    except RewardFailureError:
        return True
    return False


def _failures(tried: Tried, section: RewardSection) -> Iterator[str]:
    rows = tried.rows
    late = rows.filter(pl.col("outcome") == Outcome.TIMEOUT.value).height
    if late:
        rest = f"; the other {tried.untried:,} rows were not tried" if tried.untried else ""
        yield (
            f"it hangs: {late:,} of {rows.height:,} rows have no score within reward.timeout_s ="
            f" {section.timeout_s:g} s{rest}"
            f"{_stops(late / rows.height, section.max_timeout_fraction, 'max_timeout_fraction')}"
        )
    kinds: dict[str, list[tuple[str, int]]] = {}
    for reason, count in reasons(rows, Outcome.ERROR.value):
        kinds.setdefault(_kind(reason), []).append((reason, count))
    for kind, of_kind in kinds.items():
        failed = sum(count for _, count in of_kind)
        reason, count = of_kind[0]
        said = "" if reason == _NONE else f"; most frequent, on {count:,}: {reason}"
        yield (
            f"{kind} {failed:,} of {rows.height:,} rows{said}"
            f"{_stops(failed / rows.height, section.max_error_fraction, 'max_error_fraction')}"
        )


def _kind(reason: str) -> str:
    if reason == _NONE:
        return "it returns None, which is no score, on"
    if reason.startswith(_MISTYPED):
        return "it returns something else than a finite number on"
    return "it fails on"


def _stops(share: float, bound: float, name: str) -> str:
    return f" (a run stops above reward.{name} = {bound:g})" if share > bound else ""


def _constant(rows: pl.DataFrame) -> Iterator[str]:
    scores = rows["score"].drop_nulls()
    if scores.len() > 1 and scores.n_unique() == 1:
        yield (
            f"it is constant: all {scores.len():,} scored rows have {scores[0]:g}, so no prompt"
            " carries a signal and nothing is learnt"
        )
    elif (differing := signals(rows)) and not any(differing):
        yield (
            f"no signal: in each of {len(differing):,} prompts all responses score the same, so"
            " comparing them teaches nothing"
        )


def _by_prompt(rows: pl.DataFrame) -> Iterator[str]:
    scored = rows.drop_nulls("score")
    own = scored.filter(pl.col("prompted") == OWN)["score"].to_numpy()
    other = scored.filter(pl.col("prompted") == OTHER)["score"].to_numpy()
    if not len(own) or not len(other):
        return
    if own.mean() < other.mean():
        yield (
            f"its sign is flipped: the answers of demonstrations score {own.mean():.4g} on average"
            f" for their own prompts, and {other.mean():.4g} for others, where they are wrong"
        )
    elif scored["score"].n_unique() > 1 and own.mean() == other.mean():
        yield (
            "it does not look at the prompt's ground truth: the answers of demonstrations score"
            f" {own.mean():.4g} on average for their own prompts and for others"
        )


def _flipped(rows: pl.DataFrame, other: pl.DataFrame, against: str) -> Iterator[str]:
    both = pl.DataFrame({"one": rows["score"], "other": other["score"]}).drop_nulls()
    correlation = rank_correlation(both["one"], both["other"])
    if correlation is not None and correlation <= FLIPPED:
        yield (
            f"its sign is flipped against {against}: the rank correlation of the two is"
            f" {correlation:.2f}"
        )


def _by_length(rows: pl.DataFrame) -> Iterator[str]:
    scored = rows.drop_nulls("score")
    if scored["score"].n_unique() < 3:
        return  # two values have many ties, whose correlation says little
    correlation = rank_correlation(scored["score"], scored["tokens"])
    if correlation is not None and abs(correlation) >= BY_LENGTH:
        yield (
            "it scores length and nothing else: the rank correlation of score and sampled tokens"
            f" is {correlation:.2f}"
        )
