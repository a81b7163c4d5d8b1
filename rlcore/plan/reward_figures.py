"""What a trial of a reward shows: figures of the scores, where two rewards disagree, and what is
wrong, a sentence each. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from rlcore.plan.reward_rows import OTHER, OWN
from rlcore.plan.reward_scores import Tried
from rlcore.rewards.unscored_rows import RewardFailureError, check_any_scored, check_unscored
from schemas.outcomes import Outcome
from schemas.rl import RewardSection

VALUES = 8  # distinct scores that are counted each; more are counted in as many intervals
SHOWN_TEXT = 200  # characters of a reason
COLUMNS = ("part", "name", "value", "other", "text", "response")


@dataclass(frozen=True, slots=True)
class RewardFigure:
    """One figure, or one row on which two rewards disagree (``part`` "disagreement", where
    ``text`` is the prompt). ``other``: the same of the reward that is compared with."""

    part: str
    name: str
    value: float | None = None
    other: float | None = None
    text: str | None = None
    response: str | None = None


def figures(rows: pl.DataFrame, other: pl.DataFrame | None) -> list[RewardFigure]:
    """Return the figures of ``rows`` (``score.Tried.rows``), beside those of ``other``: the rows
    of a second reward, in the same order.

    Quartiles are linear interpolations, ``std`` that of the population (as ``grpo`` divides by);
    ``signal``: share of the prompts, with two scores or more, whose scores are not all equal.
    """
    found = list(_outcomes(rows, other))
    found += _paired("score", _distribution(rows), {} if other is None else _distribution(other))
    found += _counts(_scores(rows), None if other is None else _scores(other))
    seconds = [_seconds(frame) for frame in (rows, other) if frame is not None]
    found += _paired("seconds", seconds[0], seconds[1] if other is not None else {})
    found += _paired("groups", _groups(rows), {} if other is None else _groups(other))
    found += _paired("correct", _correct(rows), {} if other is None else _correct(other))
    found += _paired("samples", _samples(rows), {} if other is None else _samples(other))
    return found


def comparison(rows: pl.DataFrame, other: pl.DataFrame, shown: int) -> list[RewardFigure]:
    """Return how far two rewards of the same rows agree, and the ``shown`` rows on which they
    disagree most: by the difference of their ranks among all rows, so that scales do not matter.

    A row that only one of them scores is no disagreement, and is counted apart.
    """
    pairs = pl.DataFrame(
        {
            "score": rows["score"],
            "other": other["score"],
            "prompt": rows["prompt"],
            "response": rows["response"],
        }
    )
    one_sided = (pairs["score"].is_null() != pairs["other"].is_null()).sum()
    both = pairs.drop_nulls(["score", "other"])
    apart = both.with_columns(
        apart=(pl.col("score").rank("average") - pl.col("other").rank("average")).abs()
    ).filter(pl.col("score") != pl.col("other"))
    worst = apart.sort("apart", descending=True, maintain_order=True).head(shown)
    return [
        RewardFigure("against", "scored by both", float(both.height)),
        RewardFigure("against", "scored by one only", float(one_sided)),
        RewardFigure("against", "disagree", float(apart.height)),
        RewardFigure("against", "rank correlation", rank_correlation(both["score"], both["other"])),
        *(
            RewardFigure("disagreement", str(number), score, its, text=prompt, response=response)
            for number, (score, its, prompt, response) in enumerate(
                worst.select("score", "other", "prompt", "response").iter_rows(), start=1
            )
        ),
    ]


def rank_correlation(one: pl.Series, other: pl.Series) -> float | None:
    """Return Spearman's correlation of two columns without nulls, ties at their mean rank; None
    where one of them is constant."""
    if one.n_unique() < 2 or other.n_unique() < 2:
        return None
    pair = pl.DataFrame({"one": one, "other": other})
    return float(pair.select(pl.corr("one", "other", method="spearman")).item())


def left_out(untried: int, foreign: int) -> list[RewardFigure]:
    """Return the counts of rows that have no result, those above 0."""
    counts = {"not tried": untried, "of other data sources": foreign}
    return [RewardFigure("rows", name, float(count)) for name, count in counts.items() if count]


def signals(rows: pl.DataFrame) -> list[bool]:
    """Return whether the scores differ, for each prompt with two scores or more."""
    scored = rows.drop_nulls("score").group_by("group", maintain_order=True)
    counted = scored.agg(rows=pl.len(), values=pl.col("score").n_unique())
    return (counted.filter(pl.col("rows") > 1)["values"] > 1).to_list()


def reasons(rows: pl.DataFrame, outcome: str) -> list[tuple[str, int]]:
    """Return the details of the rows with ``outcome`` and how many have each, most first; one line
    each, without control characters."""
    details = rows.filter(pl.col("outcome") == outcome)["detail"]
    return Counter(_line(text) for text in details).most_common()


def _outcomes(rows: pl.DataFrame, other: pl.DataFrame | None) -> Iterator[RewardFigure]:
    yield RewardFigure(
        "rows", "rows", float(rows.height), None if other is None else float(other.height)
    )
    for outcome in Outcome:
        count = _with(rows, outcome)
        its = None if other is None else float(_with(other, outcome))
        if count or its:
            frequent = [reason for reason, _ in reasons(rows, outcome.value) if reason][:1]
            yield RewardFigure(
                "outcome", outcome.value, float(count), its, text=(frequent or [None])[0]
            )


def _with(rows: pl.DataFrame, outcome: Outcome) -> int:
    return rows.filter(pl.col("outcome") == outcome.value).height


def _distribution(rows: pl.DataFrame) -> dict[str, float]:
    scores = _scores(rows)
    if not len(scores):
        return {}
    least, first, median, third, most = np.quantile(scores, [0, 0.25, 0.5, 0.75, 1])
    return {
        "min": float(least),
        "lower quartile": float(first),
        "median": float(median),
        "upper quartile": float(third),
        "max": float(most),
        "mean": float(scores.mean()),
        "std": float(scores.std()),
    }


def _counts(scores: np.ndarray, other: np.ndarray | None) -> Iterator[RewardFigure]:
    """Yield how often each score occurs, or with many of them each interval of scores."""
    own = np.unique(scores)
    values = own if other is None else np.union1d(own, other)
    if len(own) <= VALUES:
        paired = other is not None and len(values) <= VALUES
        for value in values if paired else own:
            its = float((other == value).sum()) if paired else None
            yield RewardFigure("count", f"{value:.6g}", float((scores == value).sum()), its)
        return
    edges = np.linspace(values[0], values[-1], VALUES + 1)
    counts = np.histogram(scores, edges)[0]
    others = None if other is None else np.histogram(other, edges)[0]
    for i, count in enumerate(counts):
        end = "]" if i == VALUES - 1 else ")"
        its = None if others is None else float(others[i])
        yield RewardFigure("count", f"[{edges[i]:.4g}, {edges[i + 1]:.4g}{end}", float(count), its)


def _seconds(rows: pl.DataFrame) -> dict[str, float]:
    seconds = rows["seconds"].to_numpy()
    return {"median": float(np.median(seconds)), "max": float(seconds.max())}


def _groups(rows: pl.DataFrame) -> dict[str, float]:
    differing = signals(rows)
    if not differing:
        return {}
    return {"prompts": float(len(differing)), "signal": sum(differing) / len(differing)}


def _correct(rows: pl.DataFrame) -> dict[str, float]:
    verdicts = rows["correct"].drop_nulls()
    if not verdicts.len():
        return {}
    return {"verdicts": float(verdicts.len()), "accuracy": float(verdicts.to_numpy().mean())}


def _samples(rows: pl.DataFrame) -> dict[str, float]:
    means = {}
    for prompted in (OWN, OTHER):
        scores = rows.filter(pl.col("prompted") == prompted)["score"].drop_nulls()
        if scores.len():
            means[f"mean score, {prompted} prompt"] = float(scores.to_numpy().mean())
    return means


def _paired(part: str, own: dict[str, float], other: dict[str, float]) -> Iterator[RewardFigure]:
    for name in {**own, **other}:
        yield RewardFigure(part, name, own.get(name), other.get(name))


def _scores(rows: pl.DataFrame) -> np.ndarray:
    return rows["score"].drop_nulls().to_numpy()


def _line(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(shown.split())[:SHOWN_TEXT]


def to_rows(found: Sequence[RewardFigure]) -> list[dict[str, object]]:
    """Return figures as rows of ``COLUMNS``."""
    return [{name: getattr(figure, name) for name in COLUMNS} for figure in found]


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
