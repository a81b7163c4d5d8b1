"""A figure rests on the prompts that can give it, and weighs each of them alike."""

from typing import Any

import polars as pl
import pytest

from rlcore.evaluation.summary import summarize
from schemas.recipe import EvaluateSection
from schemas.table_list import MESSAGES
from schemas.tables import EVAL_RESULTS

TYPES = {"correct": pl.Boolean, "score": pl.Float64, "turns": MESSAGES}
SECTION = EvaluateSection(samples=2, pass_k=(1, 2))


def drawn(*rows: tuple[str, str, str, bool | None], **fields: Any) -> pl.DataFrame:
    """Completions as (source, uid, mode, correct), the samples of a prompt one after another."""
    counts: dict[tuple[str, str], int] = {}
    table = []
    for source, uid, mode, correct in rows:
        sample = counts[uid, mode] = counts.get((uid, mode), -1) + 1
        row = {
            "checkpoint": "rl",
            "data_source": source,
            "subset": "test",
            "mode": mode,
            "uid": uid,
            "prompt": uid.partition("-")[0],  # copies have the uid of the first and a number
            "sample": sample,
            "correct": correct,
            "answer": None if correct is None else "right" if correct else "wrong",
            "score": None if correct is None else float(correct),
            "num_tokens": 4,
            "finish_reason": "stop",
            "outcome": "timeout" if correct is None else "ok" if correct else "wrong",
            "judge_failed": False,
            "turns": [],
            "valid_actions": [True],
        }
        table.append(row | fields)
    return pl.DataFrame(table, schema_overrides=TYPES)


def figures(frame: pl.DataFrame, source: str = "a") -> dict[str, tuple[float, int]]:
    rows = summarize(frame, SECTION, seed=0)
    mine = rows.filter(pl.col("data_source") == source)
    return {
        metric: (value, n) for metric, value, n in mine["metric", "value", "num_prompts"].rows()
    }


def test_all_weighs_every_prompt_alike_not_every_source() -> None:
    rows = [("a", "1", "greedy", True), ("b", "2", "greedy", False), ("b", "3", "greedy", False)]
    frame = drawn(*rows)
    assert figures(frame, "a")["greedy/acc"] == (1.0, 1)
    assert figures(frame, "b")["greedy/acc"] == (0.0, 2)
    assert figures(frame, "all")["greedy/acc"] == (pytest.approx(1 / 3), 3)
    EVAL_RESULTS.validate(summarize(frame, SECTION, seed=0))


def test_what_could_not_be_scored_is_no_wrong_answer_but_is_counted() -> None:
    found = figures(drawn(("a", "1", "greedy", True), ("a", "2", "greedy", None)))
    assert found["greedy/acc"] == (1.0, 1)
    assert found["greedy/score"] == (1.0, 1)
    assert found["greedy/unscored"] == (0.5, 2)


def test_without_answers_no_majority_is_told() -> None:
    """A right sample whose function extracts no answer could not win: the figure would be 0."""
    rows = [("a", "1", "sampled", True), ("a", "1", "sampled", True)]
    assert figures(drawn(*rows))["sampled/maj@2"] == (1.0, 1)
    told = figures(drawn(*rows, answer=None))
    assert "sampled/maj@2" not in told
    assert told["sampled/avg@2"] == (1.0, 1)


def test_a_prompt_with_too_few_samples_has_no_pass_at_k() -> None:
    """Counted all the same, it would make pass@k look worse than it is."""
    rows = [("a", "1", "sampled", True), ("a", "1", "sampled", False)]
    rows += [("a", "2", "sampled", False), ("a", "2", "sampled", None)]
    found = figures(drawn(*rows))
    assert found["sampled/avg@2"] == (0.25, 2)
    assert found["sampled/pass@1"] == (0.25, 2)
    assert found["sampled/pass@2"] == (1.0, 1)


def test_rewards_that_judge_nothing_have_no_accuracy() -> None:
    """Reported as 0 it would read as a model that cannot do anything."""
    rows = drawn(("a", "1", "greedy", True)).with_columns(correct=pl.lit(None, pl.Boolean))
    found = figures(rows)
    assert "greedy/acc" not in found
    assert found["greedy/score"] == (1.0, 1)


def test_intervals_hold_their_value_and_follow_the_seed_alone() -> None:
    rows = [("a", str(n), "sampled", n % 3 == 0) for n in range(30)]
    frame = drawn(*rows, *rows)
    here, again = (summarize(frame, SECTION, seed=0) for _ in range(2))
    assert here.equals(again)
    assert (here["ci_low"] <= here["value"]).all()
    assert (here["value"] <= here["ci_high"]).all()
    assert not here.equals(summarize(frame, SECTION, seed=1))


def test_copies_of_a_question_count_as_one() -> None:
    """AIME as 30 problems in 32 copies each had intervals of 960 prompts."""
    once = [("a", f"q{n}", "greedy", n % 3 == 0) for n in range(9)]
    sampled = [
        ("a", f"q{n}{copy}", "sampled", (n + sample) % 3 == 0)
        for n in range(9)
        for copy in ("", "-2", "-3", "-4")
        for sample in range(2)
    ]
    one_copy = [row for row in sampled if "-" not in row[1]]
    many, few = (summarize(drawn(*once, *rows), SECTION, seed=0) for rows in (sampled, one_copy))
    same = ["metric", "value", "ci_low", "ci_high", "num_prompts"]
    assert many.select(same).rows() == few.select(same).rows()
    assert set(many["num_prompts"]) == {9}
    repeated = [("a", f"q{n}{copy}", "greedy", n % 3 == 0) for n in range(9) for copy in ("", "-2")]
    assert summarize(drawn(*repeated), SECTION, seed=0)["num_prompts"].to_list()[0] == 9


def test_copies_that_differ_have_the_mean_of_their_figures() -> None:
    """The same words with two ground truths are half right: no share with Wilson's interval."""
    rows = [("a", f"q{n}", "greedy", True) for n in range(4)] + [("a", "q0-2", "greedy", False)]
    value, prompts = figures(drawn(*rows))["greedy/acc"]
    assert (value, prompts) == (3.5 / 4, 4)


def test_episodes_that_begin_alike_are_their_own() -> None:
    """A game's first words are the same whatever its seed."""
    said = [{"role": "assistant", "content": "up"}]
    rows = [("a", f"game-{n}", "greedy", n > 2) for n in range(6)]
    assert figures(drawn(*rows, turns=said))["greedy/acc"] == (0.5, 6)
