"""What the policy wrote and what it got for it: answers to one prompt side by side, and the
distribution of scores over the iterations.

A report reads a bounded part of the records, however long the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from rlcore.results.run import Run, pruned_rollouts
from rlcore.rewards.types import prompt_text, spoken_text

PROMPTS = 4  # shown
COLUMNS = 24  # iterations whose scores are read
FEW_SCORES = 6  # different scores up to which each has its own row
BINS = 8
_ANSWERS = ["trajectory_id", "uid", "sample", "iteration", "response", "finish_reason"]
_GREEDY = ["trajectory_id", "response", "finish_reason"]
_SCORED = ["trajectory_id", "score", "outcome"]


@dataclass(frozen=True, slots=True)
class SampledResponse:
    """One answer: of which iteration or checkpoint, and its score (None: it has none)."""

    by: str
    response: str
    score: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt with answers to it, from early to late; ``source``: its data source, if known."""

    prompt: str
    ground_truth: str | None
    answers: Sequence[SampledResponse]
    source: str = ""


@dataclass(frozen=True, slots=True)
class Scores:
    """Share of each bin of scores, lowest first, in each of ``iterations``: [bins, iterations]."""

    iterations: Sequence[int]
    bins: Sequence[str]
    shares: np.ndarray


def pruned(run: Run) -> str | None:
    """Return how many iterations' rollouts were pruned, and when; None where none were."""
    gone = pruned_rollouts(run)
    if not gone:
        return None
    several = "s" if len(gone) > 1 else ""
    return f"The rollouts of {len(gone)} iteration{several} were {gone[max(gone)]}."


def of_policy(run: Run) -> list[Asked]:
    """Return prompts with the policy's answers: greedy ones of the first and the last validation
    that recorded some, those whose score changed most in front; before there are two, what it
    sampled in the newest iteration."""
    rows = _validated(run)
    if rows is None:
        rows = _sampled(run)
    if rows is None:
        return []
    changed = (pl.col("score").last() - pl.col("score").first()).abs().fill_null(0.0)
    chosen = rows.group_by("uid").agg(changed).sort("score", "uid", descending=[True, False])
    uids = chosen["uid"].head(PROMPTS).to_list()
    prompts = _prompts(run, uids)
    return [
        Asked(
            *prompts.get(uid, ("", None)),
            [
                SampledResponse(
                    f"iteration {row['iteration']}",
                    row["response"],
                    row["score"],
                    f"{row['outcome'] or 'not scored yet'}, {row['finish_reason']}",
                )
                for row in rows.filter(pl.col("uid") == uid).to_dicts()
            ],
        )
        for uid in uids
    ]


def answers_of_checkpoints(completions: pl.DataFrame, most: int) -> list[Asked]:
    """Return at most ``most`` prompts of the evaluation with the answer of each checkpoint: greedy
    ones where there are any, and first those on which the checkpoints differ."""
    greedy = completions.filter(pl.col("mode") == "greedy")
    shown = greedy if greedy.height else completions.filter(pl.col("sample") == 0)
    verdicts = shown.group_by("uid", maintain_order=True).agg(pl.col("outcome").n_unique())
    chosen = verdicts.sort("outcome", descending=True, maintain_order=True)["uid"].head(most)
    asked = []
    for uid in chosen:
        rows = shown.filter(pl.col("uid") == uid).to_dicts()
        answers = [
            SampledResponse(
                row["checkpoint"],
                spoken_text(row["response"], row["turns"]),
                row["score"],
                f"{row['outcome']}, {row['num_tokens']} tokens, {row['finish_reason']}",
            )
            for row in rows
        ]
        first = rows[0]
        asked.append(Asked(first["prompt"], first["ground_truth"], answers, first["data_source"]))
    return asked


def pairs_compared(pairs: pl.DataFrame, most: int) -> list[Asked]:
    """Return at most ``most`` rows of ``win_pairs`` with a judge's verdict in both orders, those
    lost in front."""
    value = (pl.col("before") + pl.col("after")) / 2
    read = pairs.filter("asked").with_columns(value=value).drop_nulls("value")
    read = read.sort("value", maintain_order=True)
    asked = []
    for row in read.head(most).to_dicts():
        flips = row["before"] != row["after"]
        note = "the judge contradicts itself" if flips else "as the judge said in both orders"
        worth = [row["value"], 1 - row["value"]]
        names = (row["checkpoint"], row["against"])
        answers = [
            SampledResponse(name, text, won, note)
            for name, text, won in zip(names, (row["answer"], row["other"]), worth, strict=True)
        ]
        asked.append(Asked(row["prompt"], None, answers, row["data_source"]))
    return asked


def scores(run: Run) -> Scores | None:
    """Return how the scores were distributed in up to ``COLUMNS`` iterations; None without any."""
    by_iteration: dict[int, list[float]] = {}
    unscored: dict[int, int] = {}
    for iteration, names in _spread(run.recorded("rewards"), COLUMNS):
        for name in names:
            frame = run.store.glance("rewards", name, "rewards", ["score"])
            if frame is not None:
                known = frame["score"].drop_nulls()
                by_iteration.setdefault(iteration, []).extend(known.to_list())
                unscored[iteration] = unscored.get(iteration, 0) + frame["score"].null_count()
    values = np.array([value for row in by_iteration.values() for value in row])
    if not len(values):
        return None
    distinct = np.unique(values.round(6))
    if len(distinct) <= FEW_SCORES:
        labels = [f"{value:.4g}" for value in distinct]
        equal = [np.round(row, 6)[:, None] == distinct for row in by_iteration.values()]
        counts = np.array([each.sum(axis=0) for each in equal]).T
    else:
        edges = np.linspace(values.min(), values.max(), BINS + 1)
        labels = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
        counts = np.array([np.histogram(row, edges)[0] for row in by_iteration.values()]).T
    if any(unscored.values()):
        labels = ["no score", *labels]
        counts = np.vstack([[unscored[step] for step in by_iteration], counts])
    return Scores(list(by_iteration), labels, counts / np.maximum(counts.sum(axis=0), 1))


def _validated(run: Run) -> pl.DataFrame | None:
    """Return the answers of the first and the last validation with their scores; None unless there
    are two."""
    named, found = run.recorded("validation"), list[pl.DataFrame]()
    if len(named) < 2:
        return None
    for iteration in (min(named), max(named)):
        name = named[iteration][0]
        answers = run.store.glance("validation", name, "validation_answers", _GREEDY)
        scored = run.store.glance("validation", name, "validation_rewards", _SCORED)
        if answers is None or scored is None:
            return None
        rows = answers.join(scored, on="trajectory_id", maintain_order="left")
        rows = rows.rename({"trajectory_id": "uid"})
        found.append(rows.with_columns(iteration=pl.lit(iteration)))
    return pl.concat(found)


def _sampled(run: Run) -> pl.DataFrame | None:
    """Return the first sample of each prompt of the newest iteration that can be read: not the best
    one, nor the worst."""
    for _, (name, *_) in sorted(run.recorded("rollouts").items(), reverse=True):
        answers = run.store.glance("rollouts", name, "rollouts", _ANSWERS)
        if answers is None:
            continue
        answers = answers.filter(pl.col("sample") == 0)
        played = run.store.glance("rollouts", name, "episodes", ["trajectory_id", "turns"])
        if played is not None:
            answers = _with_turns(answers, played)
        scored = run.store.glance("rewards", name, "rewards", _SCORED)
        if scored is None:
            nothing = {"trajectory_id": pl.String, "score": pl.Float64, "outcome": pl.String}
            scored = pl.DataFrame(schema=nothing)
        return answers.join(scored, on="trajectory_id", how="left", maintain_order="left")
    return None


def _with_turns(answers: pl.DataFrame, played: pl.DataFrame) -> pl.DataFrame:
    """Return ``answers`` with whole episodes as their responses."""
    rows = answers.join(played, on="trajectory_id", how="left", maintain_order="left")
    spoken = [spoken_text(*row) for row in rows.select("response", "turns").iter_rows()]
    return answers.with_columns(response=pl.Series(spoken, dtype=pl.String))


def _spread(named: dict[int, list[str]], most: int) -> list[tuple[int, list[str]]]:
    """Return at most ``most`` iterations, evenly, with the first and the last one."""
    steps = list(named)
    if len(steps) > most:
        places = np.linspace(0, len(steps) - 1, most).round().astype(int)
        steps = [steps[place] for place in places]
    return [(step, named[step]) for step in steps]


def _prompts(run: Run, uids: list[str]) -> dict[str, tuple[str, str | None]]:
    """Return text and ground truth by uid, of the dataset that the newest rollouts name."""
    named = run.recorded("rollouts")
    newest = [f"rollouts/{named[max(named)][0]}"] if named else []
    made = run.store.read_manifests(newest, lambda damage: None)
    ref = made[0].parents.get("dataset") if made else None
    shown = ["uid", "prompt", "ground_truth"]
    frame = ref and run.store.glance(ref.kind, ref.key, "prompts", shown)
    if frame is None:
        return {}
    rows = frame.filter(pl.col("uid").is_in(uids)).iter_rows()
    return {uid: (prompt_text(messages), truth) for uid, messages, truth in rows}
