"""What the answers of evolving were worth, once all are there: the only place that reads ground
truths. The metrics are those of ``docs/understand/evolve.md``.

Answers that could not be scored are left out; ``verifier_acc`` and ``accepted`` are of the rounds
with an answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from rlcore.algorithms.statistics import avg_at_k, is_majority_right
from rlcore.evaluation.summary import GroupMetric, results_table
from rlcore.evolve.prompts import best, scored_text
from rlcore.evolve.rounds import Round, remembered
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rewards.unscored_rows import check_unscored
from schemas.errors import UserError
from schemas.evolve import EvolveSection
from schemas.outcomes import FinishReason, Outcome
from schemas.rl import RewardSection

MODEL = "model"  # the column ``checkpoint`` of the figures
ROUND, INDEPENDENT = "round", "independent"
Scorer = Callable[[list[RewardRow]], list[Reward]]


def score_answers(
    rounds: Sequence[Round],
    independent: Sequence[pl.DataFrame],
    prompts: pl.DataFrame,
    *,
    section: EvolveSection,
    scorer: Scorer,
    reward: RewardSection,
) -> pl.DataFrame:
    """Return the table ``evolve_scores`` of all ``rounds`` and ``independent`` samples.

    ``prompts``: the Prompts table, with the ground truths. Raises RewardFailureError where more
    answers are unscored than ``reward`` allows, UserError where no reward function checks them.
    """
    by_uid = {row["uid"]: row for row in prompts.iter_rows(named=True)}
    answers = pl.concat(
        [
            *(one.answers.with_columns(mode=pl.lit(ROUND)) for one in rounds),
            *(one.with_columns(mode=pl.lit(INDEPENDENT)) for one in independent),
        ]
    ).rows(named=True)
    asked = [
        _reward_row(row, by_uid[row["uid"]], section)
        for row in answers
        if row["answer"] is not None
    ]
    rewards = {one.trajectory_id: one for one in (scorer(asked) if asked else [])}
    outcomes = [(one.outcome, one.detail) for one in rewards.values()]
    check_unscored(outcomes, reward, rows="answers of evolving")
    if rewards and all(one.correct is None for one in rewards.values()):
        raise UserError(
            f"the reward functions say of none of {len(rewards)} answers whether it is right; add"
            " one that does to reward.functions, of weight 0 if it is for that alone: the rounds"
            " are kept, and are scored again"
        )
    memory = remembered(rounds)
    votes = {(uid, one.round): one.score for uid, entries in memory.items() for one in entries}
    chosen = {(uid, best(entries, 1)[0].round) for uid, entries in memory.items()}
    rows = []
    for row in answers:
        prompt, place = by_uid[row["uid"]], (row["uid"], row["round"])
        is_round = row["mode"] == ROUND
        given = rewards.get(_name(row), _no_answer(row))
        rows.append(
            {
                "uid": row["uid"],
                "data_source": prompt["data_source"],
                "subset": prompt["subset"],
                "mode": row["mode"],
                "round": row["round"],
                "answer": row["answer"] if given.answer is None else given.answer,
                "outcome": given.outcome,
                "score": given.score,
                "correct": given.correct,
                "vote": votes.get(place) if is_round else None,
                "is_chosen": is_round and place in chosen,
            }
        )
    types = {"round": pl.Int32, "vote": pl.Int32, "score": pl.Float64, "correct": pl.Boolean}
    return pl.DataFrame(rows, schema_overrides={"answer": pl.String, **types})


def figures(scores: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Return the EvalResults table of ``scores`` (``evolve_scores``)."""
    return results_table(scores, MODEL, _figures, seed)


def _figures(group: pl.DataFrame) -> Iterator[GroupMetric]:
    rounds = group.filter(pl.col("mode") == ROUND).sort("round")
    for (number,), one in rounds.group_by("round", maintain_order=True):
        checked = one.filter(pl.col("correct").is_not_null())
        judged = checked.filter(pl.col("vote").is_not_null())
        name = f"round-{number:02d}"
        yield _share(f"{name}/policy_acc", checked["correct"])
        yield _share(f"{name}/verifier_acc", (judged["vote"] == 1) == judged["correct"])
        yield _share(f"{name}/accepted", one["vote"].drop_nulls() == 1)
        yield _share(f"{name}/answered", one["outcome"] != Outcome.NO_ANSWER.value)
    yield _share("success/any_round", _any_right(rounds), rounds.height)
    last = rounds.filter(pl.col("round") == pl.col("round").max())
    yield _share("success/last_round", last["correct"].drop_nulls())
    chosen = rounds.filter("is_chosen")
    without = rounds["uid"].n_unique() - chosen["uid"].n_unique()
    right = [*chosen["correct"].drop_nulls(), *[False] * without]
    yield _share("success/chosen", pl.Series(right, dtype=pl.Boolean))
    yield from _of_independent(group.filter(pl.col("mode") == INDEPENDENT).sort("round"))


def _of_independent(drawn: pl.DataFrame) -> Iterator[GroupMetric]:
    count = drawn["round"].n_unique()
    checked = drawn.filter(pl.col("correct").is_not_null())
    grouped = checked.group_by("uid", maintain_order=True).agg("correct", "answer")
    prompts = list(grouped.select("correct", "answer").iter_rows())
    won = [is_majority_right(*prompt) for prompt in prompts]
    samples = checked.height
    yield _share(f"independent/maj@{count}", pl.Series(won, dtype=pl.Boolean), samples)
    means = np.array([avg_at_k(correct) for correct, _ in prompts], dtype=float)
    yield GroupMetric(f"independent/avg@{count}", means, False, samples)
    yield _share(f"independent/pass@{count}", _any_right(drawn), samples)


def _any_right(rows: pl.DataFrame) -> pl.Series:
    """Return per problem whether a row is right; without those where no checked row is and another
    could not be scored."""
    grouped = rows.group_by("uid", maintain_order=True)
    # Kleene logic: null where it depends on what is not known
    return grouped.agg(pl.col("correct").any(ignore_nulls=False))["correct"].drop_nulls()


def _share(metric: str, values: pl.Series, samples: int | None = None) -> GroupMetric:
    array = values.to_numpy().astype(float)
    return GroupMetric(metric, array, True, len(array) if samples is None else samples)


def _reward_row(
    row: Mapping[str, Any], prompt: Mapping[str, Any], section: EvolveSection
) -> RewardRow:
    return RewardRow.of_prompt(
        prompt,
        trajectory_id=_name(row),
        response=scored_text(section, row["answer"]),
        finish_reason=FinishReason.STOP,
        num_tokens=row["num_tokens"],
        token_ids=(),
        turns=row["turns"],
        turn_rewards=row["turn_rewards"],
    )


def _no_answer(row: Mapping[str, Any]) -> Reward:
    return Reward(_name(row), Outcome.NO_ANSWER, 0.0, correct=False, detail="no attempt had one")


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['uid']}-{row['mode']}-{row['round']}"
