"""Figures of evolving beside those of independent samples, against tables worked by hand."""

import json

import polars as pl
import pytest

from rlcore.evolve.rounds import Round, draw_independent, play_round, remembered
from rlcore.evolve.scores import figures, score_answers
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rewards.unscored_rows import RewardFailureError
from schemas.errors import UserError
from schemas.outcomes import Outcome
from schemas.rl import RewardSection
from schemas.tables import TABLES
from tests.rlcore.evolve.scripted import Engines, Words, agents, problem, section

PROBLEMS = [problem("a", "2 and 3?"), problem("b", "3 and 4?")]
TRUTH = {"a": "5", "b": "7"}
PROMPTS = pl.DataFrame(
    [
        {
            **row,
            "split": "test",
            "subset": row["uid"],
            "ground_truth": TRUTH[row["uid"]],
            "extra_info": json.dumps({}),
        }
        for row in PROBLEMS
    ]
)
REWARD = RewardSection.model_validate({"functions": [{"name": "arithmetic"}]})
CHOSEN = section(rounds=2, verifiers=1, format_retries=0)
SAID: Words = {
    ("policy", 1, "a", 0): "so it is <answer>5</answer>",
    ("verifier", 1, 0, "a", 0): r"\boxed{0}",  # wrongly rejected
    ("policy", 2, "a", 0): "<answer>6</answer>",
    ("verifier", 2, 0, "a", 0): r"\boxed{1}",  # wrongly accepted
    ("policy", 1, "b", 0): "no answer",
    ("policy", 2, "b", 0): "<answer>7</answer>",
    ("verifier", 2, 0, "b", 0): r"\boxed{1}",
    ("independent", 1, "a", 0): "<answer>6</answer>",  # a tie goes to the first
    ("independent", 2, "a", 0): "<answer>5</answer>",
    ("independent", 1, "b", 0): "none",
    ("independent", 2, "b", 0): "<answer>7</answer>",
}
HAND_WORKED = {
    "round-01/policy_acc": (0.5, 2),
    "round-01/verifier_acc": (0.0, 1),
    "round-01/accepted": (0.0, 1),
    "round-01/answered": (0.5, 2),
    "round-02/policy_acc": (0.5, 2),
    "round-02/verifier_acc": (0.5, 2),
    "round-02/accepted": (1.0, 2),
    "round-02/answered": (1.0, 2),
    "success/any_round": (1.0, 2),
    "success/last_round": (0.5, 2),
    # a: round 2 is accepted and shorter; b: round 2
    "success/chosen": (0.5, 2),
    "independent/maj@2": (0.5, 2),
    "independent/avg@2": (0.5, 2),
    "independent/pass@2": (1.0, 2),
}


def played() -> tuple[list[Round], list[pl.DataFrame]]:
    asked = agents(Engines(SAID), CHOSEN)
    done: list[Round] = []
    for number in (1, 2):
        done.append(play_round(number, PROBLEMS, remembered(done), asked))
    return done, [draw_independent(number, PROBLEMS, asked) for number in (1, 2)]


def scorer(rows: list[RewardRow]) -> list[Reward]:
    """Right where the response is '#### ' and the ground truth."""
    rewards = []
    for row in rows:
        right = row.response == f"#### {row.ground_truth}"
        outcome = Outcome.OK if right else Outcome.WRONG
        rewards.append(Reward(row.trajectory_id, outcome, float(right), correct=right))
    return rewards


def test_figures_are_those_of_the_table() -> None:
    rounds, drawn = played()
    scores = score_answers(rounds, drawn, PROMPTS, section=CHOSEN, scorer=scorer, reward=REWARD)
    TABLES["evolve_scores"].validate(scores)
    for one in rounds:
        TABLES["evolve_answers"].validate(one.answers)
        TABLES["evolve_verdicts"].validate(one.verdicts)
    found = figures(scores, 0)
    TABLES["eval_results"].validate(found)
    of_all = found.filter(pl.col("data_source") == "all")
    values = of_all.select("metric", "value", "num_prompts").iter_rows()
    assert {metric: (value, count) for metric, value, count in values} == HAND_WORKED
    subset = found.filter((pl.col("subset") == "b") & (pl.col("metric") == "success/last_round"))
    assert subset["value"].to_list() == [1.0]
    chosen = scores.filter("is_chosen").select("uid", "round", "answer").rows()
    assert sorted(chosen) == [("a", 2, "6"), ("b", 2, "7")]


def test_an_answer_that_cannot_be_scored_is_left_out_and_too_many_are_an_error() -> None:
    def losing(rows: list[RewardRow]) -> list[Reward]:
        return [
            Reward(row.trajectory_id, Outcome.ERROR, None, detail="lost")
            if row.trajectory_id == "a-round-2"
            else reward
            for row, reward in zip(rows, scorer(rows), strict=True)
        ]

    rounds, drawn = played()
    lenient = REWARD.model_copy(update={"max_error_fraction": 0.9})
    scores = score_answers(rounds, drawn, PROMPTS, section=CHOSEN, scorer=losing, reward=lenient)
    found = figures(scores, 0).filter(pl.col("data_source") == "all")
    counts = dict(found.select("metric", "num_prompts").iter_rows())
    assert counts["round-02/policy_acc"] == 1
    assert counts["success/last_round"] == 1
    assert counts["success/any_round"] == 2, "another round of it is right"
    strict = REWARD.model_copy(update={"max_error_fraction": 0.0})
    with pytest.raises(RewardFailureError, match="answers of evolving could not be scored"):
        score_answers(rounds, drawn, PROMPTS, section=CHOSEN, scorer=losing, reward=strict)


def test_rewards_without_a_verdict_are_an_error() -> None:
    def numbers(rows: list[RewardRow]) -> list[Reward]:
        return [Reward(row.trajectory_id, Outcome.OK, 0.5) for row in rows]

    rounds, drawn = played()
    with pytest.raises(UserError, match=r"none of 6 answers whether it is right; add one"):
        score_answers(rounds, drawn, PROMPTS, section=CHOSEN, scorer=numbers, reward=REWARD)


def test_the_figures_say_nothing_of_what_nobody_answered() -> None:
    asked = agents(Engines({}), CHOSEN)
    rounds = [play_round(1, PROBLEMS, {}, asked)]
    drawn = [draw_independent(1, PROBLEMS, asked)]
    scores = score_answers(rounds, drawn, PROMPTS, section=CHOSEN, scorer=scorer, reward=REWARD)
    TABLES["evolve_scores"].validate(scores)
    found = figures(scores, 0).filter(pl.col("data_source") == "all")
    values = dict(found.select("metric", "value").iter_rows())
    assert "round-01/verifier_acc" not in values, "no verifier was asked"
    zero = {"round-01/policy_acc", "round-01/answered", "success/chosen", "independent/maj@1"}
    assert {values[name] for name in zero} == {0.0}
