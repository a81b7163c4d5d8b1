"""What a trial of a reward shows: figures of the scores, where two rewards disagree, and what is
wrong, a sentence each. Pure."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from rlcore.plan.reward_trial import OTHER, OWN, Tried
from rlcore.rewards.unscored_rows import RewardFailureError, check_any_scored, check_unscored
from schemas.outcomes import Outcome
from schemas.rl import RewardSection

SHOWN_TEXT = 200  # characters of a reason
FLIPPED = -0.5  # rank correlation with the other reward
BY_LENGTH = 0.95  # rank correlation with the number of sampled tokens, of either sign
COLUMNS = ("part", "name", "value", "other", "text", "response")


@dataclass(frozen=True, slots=True)
class RewardFigure:
    """One figure, or one row on which two rewards disagree (``part`` "disagreement", where
    ``text`` is the prompt, and ``other`` the score of the reward that is compared with)."""

    part: str
    name: str
    value: float | None = None
    other: float | None = None
    text: str | None = None
    response: str | None = None


def figures(tried: Tried) -> list[RewardFigure]:
    """Return the figures of a trial, those of what it left out included.

    Quartiles are linear interpolations, ``std`` that of the population (as ``grpo`` divides by);
    ``signal``: share of the prompts, with two scores or more, whose scores are not all equal.
    """
    rows = tried.rows
    counts = {
        "rows": rows.height,
        "not tried": tried.untried,
        "of other data sources": tried.foreign,
    }
    found = [RewardFigure("rows", name, float(count)) for name, count in counts.items() if count]
    for outcome in Outcome:
        if count := rows.filter(pl.col("outcome") == outcome.value).height:
            reason = next((reason for reason, _ in _reasons(rows, outcome) if reason), None)
            found.append(RewardFigure("outcome", outcome.value, float(count), text=reason))
    seconds = pl.col("seconds")
    parts = {
        "score": _distribution(rows),
        "seconds": rows.select(median=seconds.median(), max=seconds.max()).row(0, named=True),
    }
    if differing := _signals(rows):
        parts["groups"] = {"prompts": len(differing), "signal": sum(differing) / len(differing)}
    if len(verdicts := rows["correct"].drop_nulls().cast(pl.Float64)):
        parts["correct"] = {"verdicts": len(verdicts), "accuracy": verdicts.mean()}
    return found + [
        RewardFigure(part, name, float(value))
        for part, values in parts.items()
        for name, value in values.items()
    ]


def _distribution(rows: pl.DataFrame) -> dict[str, float]:
    scored, score = rows.drop_nulls("score"), pl.col("score")
    if scored.is_empty():
        return {}
    quartiles = ("min", "lower quartile", "median", "upper quartile", "max")
    places = {name: score.quantile(i / 4, "linear") for i, name in enumerate(quartiles)}
    return scored.select(**places, mean=score.mean(), std=score.std(ddof=0)).row(0, named=True)


def comparison(
    rows: pl.DataFrame, other: pl.DataFrame, shown: int
) -> tuple[list[RewardFigure], list[RewardFigure]]:
    """Return how far two rewards of the same rows agree, and the ``shown`` rows on which they
    disagree most: by the difference of their ranks among all rows, so that scales do not matter.

    A row that only one of them scores is no disagreement, and is counted apart.
    """
    pairs = rows.select("score", "prompt", "response", other=other["score"])
    both = pairs.drop_nulls(["score", "other"])
    apart = both.with_columns(
        apart=(pl.col("score").rank("average") - pl.col("other").rank("average")).abs()
    ).filter(pl.col("score") != pl.col("other"))
    worst = apart.sort("apart", descending=True, maintain_order=True).head(shown)
    agreement = {
        "scored by both": float(both.height),
        "scored by one only": float((pairs["score"].is_null() != pairs["other"].is_null()).sum()),
        "disagree": float(apart.height),
        "rank correlation": rank_correlation(both["score"], both["other"]),
    }
    columns = worst.select("score", "other", "prompt", "response").iter_rows()
    return [RewardFigure("against", name, value) for name, value in agreement.items()], [
        RewardFigure("disagreement", str(number), *values)
        for number, values in enumerate(columns, start=1)
    ]


def rank_correlation(one: pl.Series, other: pl.Series) -> float | None:
    """Return Spearman's correlation of two columns without nulls, ties at their mean rank; None
    where one of them is constant."""
    if one.n_unique() < 2 or other.n_unique() < 2:
        return None
    pair = pl.DataFrame({"one": one, "other": other})
    return float(pair.select(pl.corr("one", "other", method="spearman")).item())


def _signals(rows: pl.DataFrame) -> list[bool]:
    """Return whether the scores differ, for each prompt with two scores or more."""
    scored = rows.drop_nulls("score").group_by("group", maintain_order=True)
    counted = scored.agg(rows=pl.len(), values=pl.col("score").n_unique())
    return (counted.filter(pl.col("rows") > 1)["values"] > 1).to_list()


def _reasons(rows: pl.DataFrame, outcome: Outcome) -> list[tuple[str, int]]:
    """Return the details of the rows with ``outcome`` and how many have each, most first; one line
    each, without control characters."""
    details = rows.filter(pl.col("outcome") == outcome.value)["detail"]
    lines = ("".join(char if char.isprintable() else " " for char in text) for text in details)
    return Counter(" ".join(line.split())[:SHOWN_TEXT] for line in lines).most_common()


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
    found = [*_failures(tried, section), *_constant(tried.rows), *_by_prompt(tried.rows)]
    if pair is not None:
        both = pl.DataFrame({"one": pair[0]["score"], "other": pair[1]["score"]}).drop_nulls()
        correlation = rank_correlation(both["one"], both["other"])
        if correlation is not None and correlation <= FLIPPED:
            found.append(
                f"its sign is flipped against {against}: the rank correlation of the two is"
                f" {correlation:.2f}"
            )
    return [*found, *_by_length(tried.rows)]


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
    if reasons := _reasons(rows, Outcome.ERROR):
        failed = sum(count for _, count in reasons)
        reason, count = reasons[0]
        yield (
            f"it gives no score for {failed:,} of {rows.height:,} rows; most frequent, on"
            f" {count:,}: {reason}"
            f"{_stops(failed / rows.height, section.max_error_fraction, 'max_error_fraction')}"
        )


def _stops(share: float, bound: float, name: str) -> str:
    return f" (a run stops above reward.{name} = {bound:g})" if share > bound else ""


def _constant(rows: pl.DataFrame) -> Iterator[str]:
    scores = rows["score"].drop_nulls()
    if scores.len() > 1 and scores.n_unique() == 1:
        yield (
            f"it is constant: all {scores.len():,} scored rows have {scores[0]:g}, so no prompt"
            " carries a signal and nothing is learnt"
        )
    elif (differing := _signals(rows)) and not any(differing):
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
