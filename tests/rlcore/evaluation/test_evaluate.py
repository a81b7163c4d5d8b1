"""Evaluation counts what was drawn: each figure by hand on a scripted sampler."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from rlcore.engines.types import Generation, Sampling
from rlcore.evaluation.evaluate import evaluate, section_of, select_prompts
from rlcore.evaluation.summary import summarize
from rlcore.rewards.types import Failure, Reward, RewardRow
from rlcore.rewards.unscored_rows import RewardFailureError
from schemas.errors import UserError
from schemas.outcomes import FinishReason
from schemas.recipe import EvaluateSection
from schemas.rl import RewardFunction, RewardSection
from schemas.tables import COMPLETIONS, EVAL_RESULTS, PROMPTS
from tests.rlcore.rollout.scripted import STAMP, ScriptedEngines, ScriptedTokenizer

EOS = 99


def prompts(*, per_subset: int = 2, split: str = "test") -> pl.DataFrame:
    """Prompt i of a subset has the ids [i] and the ground truth str(i)."""
    rows = [
        {
            "uid": f"{source}-{subset}-{i}",
            "split": split,
            "subset": subset,
            "data_source": source,
            "prompt": [{"role": "user", "content": f"What is {i}?"}],
            "prompt_ids": [i],
            "ability": "math",
            "reward_style": "rule",
            "ground_truth": str(i),
            "extra_info": json.dumps({"subset": subset}),
        }
        for source, subset in (("sums", "test"), ("sums", "test_steps"), ("words", "test"))
        for i in range(per_subset)
    ]
    schema = dict.fromkeys(rows[0], pl.String) | {
        "prompt": pl.List(pl.Struct({"role": pl.String, "content": pl.String})),
        "prompt_ids": pl.List(pl.Int32),
    }
    return PROMPTS.validate(pl.DataFrame(rows, schema=schema))


def decode(token_ids: list[int]) -> str:
    return " ".join(str(t) for t in token_ids if t != EOS)


def score(rows: list[RewardRow]) -> list[Reward]:
    """7 times out, an empty response has no answer, else the text is the answer."""
    rewards = []
    for row in rows:
        if row.response == "7":
            rewards.append(Reward(row.trajectory_id, "timeout", None, detail="too slow"))
        elif not row.response:
            rewards.append(Reward(row.trajectory_id, "no_answer", 0.0, correct=False))
        else:
            right = row.response == row.ground_truth
            outcome = "ok" if right else "wrong"
            rewards.append(
                Reward(row.trajectory_id, outcome, float(right), correct=right, answer=row.response)
            )
    return rewards


def scripted(samples: dict[int, list[list[int]]]) -> Callable[..., list[Generation]]:
    """Return a sampler: greedy repeats the prompt, sampling walks through ``samples[prompt]``."""
    drawn: dict[int, int] = {}

    def generate(
        prompts: list[list[int]], seeds: list[int], sampling: Sampling
    ) -> list[Generation]:
        generations = []
        for (prompt,) in prompts:
            if sampling.temperature == 0:
                ids = [prompt, EOS]
            else:
                script = samples[prompt]
                ids = script[drawn.get(prompt, 0) % len(script)]
                drawn[prompt] = drawn.get(prompt, 0) + 1
            reason = FinishReason.STOP if ids[-1] == EOS else FinishReason.LENGTH
            generations.append(Generation(ids, [0.0] * len(ids), reason, STAMP))
        return generations

    return generate


SCRIPT = {
    0: [[0, EOS], [3, EOS], [3, EOS], [0, EOS]],  # tie, drawn first: right
    1: [[EOS], [7, EOS], [1, EOS], [5, 5]],  # no answer, timeout, right, cut off and wrong
}
LENIENT = RewardSection(functions=(RewardFunction(name="gsm8k"),), max_error_fraction=0.6)
SECTION = EvaluateSection(samples=4, pass_k=(1, 2, 4), max_new_tokens=2)


def run(**changes: Any) -> tuple[pl.DataFrame, pl.DataFrame]:
    arguments: dict[str, Any] = {
        "checkpoint": "rl",
        "section": SECTION,
        "seed": 0,
        "engines": ScriptedEngines(changes.pop("generate", None) or scripted(SCRIPT)),
        "tokenizer": ScriptedTokenizer(decode),
        "stop_ids": (EOS,),
        "scorer": changes.pop("score", score),
        "reward": LENIENT,
    }
    return evaluate(changes.pop("rows", prompts()), **(arguments | changes))


def figure(results: pl.DataFrame, metric: str, source: str = "sums", subset: str = "test") -> dict:
    mine = (pl.col("data_source") == source) & (pl.col("subset") == subset)
    (row,) = results.filter(mine & (pl.col("metric") == metric)).iter_rows(named=True)
    return row


def test_every_figure_equals_the_one_computed_by_hand() -> None:
    results, completions = run()
    EVAL_RESULTS.validate(results)
    COMPLETIONS.validate(completions)
    expected = {
        "greedy/acc": (1.0, 2, 2),
        "sampled/avg@4": ((2 / 4 + 1 / 3) / 2, 2, 7),  # the timeout is no sample
        "sampled/pass@1": ((2 / 4 + 1 / 3) / 2, 2, 7),
        "sampled/pass@2": ((5 / 6 + 2 / 3) / 2, 2, 7),
        "sampled/pass@4": (1.0, 1, 4),  # prompt 1 has three scored samples only
        "sampled/maj@4": (1.0, 2, 7),  # 0 before 3 in a tie; 1 before "5 5" in a tie
        "sampled/score": ((2 / 4 + 1 / 3) / 2, 2, 7),
        "sampled/response_length/mean": ((2 + 7 / 4) / 2, 2, 8),
        "sampled/response_length/clip_ratio": ((0 + 1 / 4) / 2, 2, 8),
        "sampled/unscored": ((0 + 1 / 4) / 2, 2, 8),
        "greedy/response_length/mean": (2.0, 2, 2),
        "greedy/response_length/clip_ratio": (0.0, 2, 2),
        "greedy/unscored": (0.0, 2, 2),
    }
    for metric, (value, num_prompts, num_samples) in expected.items():
        row = figure(results, metric)
        assert row["value"] == pytest.approx(value), metric
        assert (row["num_prompts"], row["num_samples"]) == (num_prompts, num_samples), metric
        assert row["ci_low"] <= row["value"] <= row["ci_high"], metric


def test_sources_subsets_and_all_have_their_rows() -> None:
    results, completions = run()
    groups = results.select("data_source", "subset").unique(maintain_order=True).rows()
    assert groups == [
        ("sums", "test"),
        ("sums", "test_steps"),
        ("words", "test"),
        ("all", "all"),
    ]
    assert figure(results, "greedy/acc", "all", "all")["num_prompts"] == 6
    assert completions.height == 6 * (1 + 4)


def test_seeds_name_the_sample_and_not_the_checkpoint() -> None:
    """Checkpoints drawn on different noise differ by luck."""
    seen: list[list[int]] = []

    def record(prompts: list[list[int]], seeds: list[int], sampling: Sampling) -> list[Generation]:
        seen.append(seeds)
        return scripted(SCRIPT)(prompts, seeds, sampling)

    run(generate=record, checkpoint="base")
    run(generate=record, checkpoint="rl")
    run(generate=record, checkpoint="rl", seed=1)
    assert seen[1] == seen[3] != seen[5]
    assert len(set(seen[1])) == 6 * 4


def test_one_sample_means_greedy_only() -> None:
    results, completions = run(section=EvaluateSection(samples=1, pass_k=(1,)))
    assert completions["mode"].unique().to_list() == ["greedy"]
    assert not [metric for metric in results["metric"] if metric.startswith("sampled")]


def test_the_cap_holds_per_source_and_subset_and_draws_by_seed() -> None:
    rows = prompts(per_subset=40)
    first, second = select_prompts(rows, 5, seed=0), select_prompts(rows, 5, seed=1)
    assert first.group_by("data_source", "subset").len()["len"].to_list() == [5, 5, 5]
    assert first.columns == rows.columns
    assert first["uid"].to_list() == select_prompts(rows, 5, seed=0)["uid"].to_list()
    assert first["uid"].to_list() != second["uid"].to_list()
    assert select_prompts(rows, None, seed=0).height == 120


def test_an_aborted_completion_is_no_wrong_answer() -> None:
    def abort_first(prompts: list[list[int]], seeds: list[int], sampling: Sampling) -> Any:
        done = scripted(SCRIPT)(prompts, seeds, sampling)
        return [Generation([], [], FinishReason.ABORT, STAMP), *done[1:]]

    results, completions = run(
        generate=abort_first, section=EvaluateSection(samples=1, pass_k=(1,))
    )
    assert (completions["outcome"][0], completions["score"][0]) == ("aborted", None)
    assert figure(results, "greedy/acc")["num_prompts"] == 1
    assert figure(results, "greedy/unscored")["value"] == 0.5
    assert figure(results, "greedy/aborted")["value"] == 0.5


def test_aborts_count_as_our_faults_and_timeouts_have_a_bound_of_their_own() -> None:
    def abort_all(prompts: list[list[int]], seeds: list[int], sampling: Sampling) -> Any:
        return [Generation([], [], FinishReason.ABORT, STAMP) for _ in prompts]

    def slow(rows: list[RewardRow]) -> list[Reward]:
        return [Reward(row.trajectory_id, "timeout", None, detail="slow") for row in rows]

    with pytest.raises(RewardFailureError, match=r"30 of 30 .* is aborted: the engine aborted"):
        run(generate=abort_all)
    with pytest.raises(RewardFailureError, match=r"above reward\.max_timeout_fraction = 0\.2;"):
        run(score=slow)


def test_a_judge_of_weight_zero_that_fails_is_counted_and_its_rows_are_unjudged() -> None:
    def judged(rows: list[RewardRow]) -> list[Reward]:
        failures = {"judge": Failure("error", "no service")}
        first, *rest = score(rows)
        return [replace(first, correct=None, failures=failures), *rest]

    results, _ = run(score=judged, section=EvaluateSection(samples=1, pass_k=(1,)))
    assert figure(results, "greedy/acc")["num_prompts"] == 1
    assert figure(results, "greedy/score")["num_prompts"] == 2
    assert figure(results, "greedy/judge_failed")["value"] == 0.5


def test_too_many_failures_stop_the_evaluation_and_name_the_reason() -> None:
    with pytest.raises(UserError) as error:
        run(reward=LENIENT.model_copy(update={"max_timeout_fraction": 0.05}))
    assert str(error.value) == (
        "3 of 30 completions of 'rl' could not be scored (10.0%), above"
        " reward.max_timeout_fraction = 0.05; the most frequent reason, on 3 of them, is timeout:"
        " too slow; raise reward.timeout_s = 10, make the reward function faster or raise the bound"
    )


def test_a_dataset_without_test_prompts_is_refused() -> None:
    with pytest.raises(UserError, match="no prompt with split 'test'; add a source"):
        run(rows=prompts(split="train"))


def test_a_reward_that_judges_no_correctness_has_scores_and_no_accuracy() -> None:
    def length_reward(rows: list[RewardRow]) -> list[Reward]:
        return [Reward(row.trajectory_id, "ok", row.num_tokens / 2) for row in rows]

    results, _ = run(score=length_reward)
    assert figure(results, "greedy/score")["value"] == 1.0
    assert not [m for m in results["metric"] if "acc" in m or "@" in m]


def test_evaluation_is_a_function_of_its_arguments() -> None:
    assert run()[0].equals(run()[0])


def test_drawn_rows_carry_the_verdict_behind_each_figure(monkeypatch) -> None:
    summarized = []
    kept = lambda drawn, *rest: summarized.append(drawn) or summarize(drawn, *rest)  # noqa: E731
    monkeypatch.setattr("rlcore.evaluation.evaluate.summarize", kept)
    run(section=SECTION)
    (drawn,) = summarized
    (row,) = drawn.filter(pl.col("outcome") == "timeout").head(1).iter_rows(named=True)
    assert (row["prompt"], row["response"], row["detail"]) == ("What is 1?", "7", "too slow")
    assert (row["score"], row["correct"], row["mode"], row["sample"]) == (None, None, "sampled", 1)


def test_the_base_model_is_sampled_only_where_rl_begins_with_it() -> None:
    """A model that never learnt to end an answer takes longest of all, and nobody asks for it."""
    section = EvaluateSection(samples=4, pass_k=(1, 4))
    assert section_of("base", ["base", "sft", "rl"], section).samples == 1
    for checkpoint in ("sft", "rl"):
        assert section_of(checkpoint, ["base", "sft", "rl"], section) == section
    assert section_of("base", ["base", "rl"], section) == section
