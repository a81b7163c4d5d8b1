"""Greedy validation: which figure chooses a checkpoint, and what no answer can be judged by."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest

from rlcore.algorithms.seeds import stream_seed
from rlcore.engines.types import Generation
from rlcore.rewards.pool import RewardPool
from rlcore.rewards.types import Failure, Reward, RewardRow
from rlcore.rewards.unscored_rows import RewardFailureError
from rlcore.rewards.worker import RewardWorker
from rlcore.rl.prompts import PromptRows
from rlcore.rl.validation import Validation, validation_prompts
from rlcore.store.tables import validate
from schemas.outcomes import FinishReason
from schemas.rl import RewardFunction, RewardSection
from schemas.rollout import RolloutSection
from tests.rlcore.rollout.scripted import STAMP, ScriptedEngines, ScriptedTokenizer

SAMPLES = "reward_samples"
GSM8K = RewardSection(functions=(RewardFunction(name="gsm8k"),), max_error_fraction=0.5)
SOURCES = ["sums", "sums", "words"]


STOP_IDS, ROLLOUT = (0,), RolloutSection(max_new_tokens=4)
TOKENIZER = ScriptedTokenizer(lambda ids: " ".join(str(token) for token in ids if token))


def answers(aborted: Sequence[int]) -> ScriptedEngines:
    """Answers 1, 2, 3, ...; aborts those of ``aborted`` in the middle of their right answer."""

    def generate(prompts: list[list[int]], *_: Any) -> list[Generation]:
        return [
            Generation([index + 1], [0.0], FinishReason.ABORT, STAMP)
            if index in aborted
            else Generation([index + 1, 0], [0.0, 0.0], FinishReason.STOP, STAMP)
            for index in range(len(prompts))
        ]

    return ScriptedEngines(generate)


class Scripted:
    """Scores by a function."""

    def __init__(self, score: Callable[[RewardRow], Reward]) -> None:
        self._score = score

    def score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        return [self._score(row) for row in rows]


def right(row: RewardRow) -> Reward:
    return Reward(row.trajectory_id, "ok", 1.0, correct=True)


def run(
    rewards: Any,
    section: RewardSection = GSM8K,
    aborted: Sequence[int] = (),
    record: Callable[[pl.DataFrame, pl.DataFrame], None] = lambda scored, answers: None,
) -> tuple[float, dict[str, float]]:
    prompts = pl.DataFrame(
        [
            {
                "uid": f"u{index}",
                "data_source": source,
                "prompt": [{"role": "user", "content": "?"}],
                "prompt_ids": [7],
                "ground_truth": str(index + 1),
                "reward_style": "rule",
                "extra_info": "{}",
            }
            for index, source in enumerate(SOURCES)
        ],
        schema_overrides={"prompt_ids": pl.List(pl.Int32)},
    )
    return Validation(
        prompts, answers(aborted), rewards, TOKENIZER, STOP_IDS, ROLLOUT, section
    ).run(record)


def test_every_answer_is_recorded_with_its_verdict() -> None:
    """They show how the policy changes; tables hold to their contracts."""
    recorded: list[tuple[pl.DataFrame, pl.DataFrame]] = []
    run(Scripted(right), aborted=[1], record=lambda *tables: recorded.append(tables))
    ((scored, answers),) = recorded
    for name, frame in (("validation_rewards", scored), ("validation_answers", answers)):
        validate(name, frame)
    assert answers.rows() == [
        ("u0", "1", "stop", 2),
        ("u1", "2", "abort", 1),
        ("u2", "3", "stop", 2),
    ]
    assert scored["trajectory_id"].to_list() == answers["trajectory_id"].to_list()


def test_an_aborted_answer_has_no_score_and_is_counted() -> None:
    """The engine's fault is no verdict on the policy, however right the answer's beginning is."""
    seen: list[str] = []

    def wrong_but_first(row: RewardRow) -> Reward:
        seen.append(row.trajectory_id)
        correct = row.trajectory_id != "u1"
        return Reward(row.trajectory_id, "ok", float(correct), correct=correct)

    figure, metrics = run(Scripted(wrong_but_first), aborted=[0])
    assert seen == ["u1", "u2"]
    assert figure == metrics["val/accuracy"] == metrics["val/score"] == 0.5
    assert metrics["val/judged_rows"] == 2
    assert metrics["val/aborted_ratio"] == metrics["val/error_fraction"] == pytest.approx(1 / 3)
    assert metrics["val-core/sums/acc/mean@1"] == 0.0


@pytest.mark.parametrize("bound", [0.5, 1.0])
def test_a_validation_without_any_answer_is_an_error_not_accuracy_zero(bound: float) -> None:
    section = GSM8K.model_copy(update={"max_error_fraction": bound})
    with pytest.raises(RewardFailureError, match="the engine aborted the response"):
        run(Scripted(right), section, aborted=[0, 1, 2])


def test_a_row_that_the_clock_ended_is_in_no_figure() -> None:
    def slow_once(row: RewardRow) -> Reward:
        if row.trajectory_id == "u0":
            return Reward(row.trajectory_id, "timeout", None, detail="slow")
        return right(row)

    lenient = GSM8K.model_copy(update={"max_timeout_fraction": 0.4})
    figure, metrics = run(Scripted(slow_once), lenient)
    assert (figure, metrics["val/accuracy"]) == (1.0, 1.0)
    assert metrics["val/timeout_fraction"] == pytest.approx(1 / 3)
    with pytest.raises(RewardFailureError, match=r"1 of 3 validation answers .*max_timeout_fracti"):
        run(Scripted(slow_once))


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[RewardSection], RewardPool]]:
    """Return a reward of real scoring processes for a section."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "rewards"))
    started: list[RewardWorker] = []

    class Inline:
        def __init__(self, worker: RewardWorker) -> None:
            self._worker = worker

        def start(self, method: str, *arguments: Any) -> Any:
            result = getattr(self._worker, method)(*arguments)

            class Done:
                def result(self, timeout_s: float) -> Any:
                    del timeout_s
                    return result

            return Done()

    def make(section: RewardSection) -> RewardPool:
        started.append(RewardWorker(section))
        inline = cast(Any, Inline(started[-1]))
        return RewardPool([inline], section, timeout_s=60.0)

    yield make
    for worker in started:
        worker.close()


def section_of(*functions: tuple[str, float, dict[str, Any]]) -> RewardSection:
    return RewardSection(
        functions=tuple(
            RewardFunction(name=f"{SAMPLES}:{name}", weight=weight, options=options)
            for name, weight, options in functions
        )
    )


@pytest.mark.parametrize("first", ["judge", "score"])
def test_the_verdict_of_weight_zero_is_reported_and_does_not_choose(
    workers: Callable[[RewardSection], RewardPool], first: str
) -> None:
    """The score says .25 and the judge, which nobody trains on, says right: .25 chooses."""
    functions = [("fixed", 1.0, {"score": 0.25}), ("rich", 0.0, {})]
    section = section_of(*(functions if first == "score" else functions[::-1]))
    figure, metrics = run(workers(section), section)
    assert (figure, metrics["val/accuracy"]) == (0.25, 1.0)
    assert metrics["val-core/sums/score/mean@1"] == 0.25


def test_a_verdict_that_counts_chooses_beside_one_of_weight_zero(
    workers: Callable[[RewardSection], RewardPool],
) -> None:
    functions = [("rich", 0.0, {}), ("fixed", 1.0, {"score": 0.25, "acc": False})]
    figure, metrics = run(workers(section_of(*functions)))
    assert (figure, metrics["val/accuracy"], metrics["val/score"]) == (0.0, 0.0, 0.25)


def test_a_failing_judge_of_weight_zero_neither_stops_nor_unscores(
    workers: Callable[[RewardSection], RewardPool],
) -> None:
    section = section_of(("wrong_answer_raises", 0.0, {}), ("fixed", 1.0, {"score": 0.25}))
    figure, metrics = run(workers(section), section)
    assert (figure, metrics["val/error_fraction"]) == (0.25, 0.0)
    assert metrics["val/judge_failed_fraction"] == 1.0
    assert "val/accuracy" not in metrics


def test_verdicts_of_weight_zero_do_not_choose_where_some_fail() -> None:
    def watched(row: RewardRow) -> Reward:
        if row.trajectory_id == "u0":
            failures = {"judge": Failure("timeout", "slow")}
            return Reward(row.trajectory_id, "ok", 0.5, failures=failures)
        return Reward(row.trajectory_id, "wrong", 0.5, correct=False, counts=False)

    figure, metrics = run(Scripted(watched))
    assert (figure, metrics["val/accuracy"]) == (0.5, 0.0)


def test_validation_prompts_are_drawn_by_seed_and_uid_alone() -> None:
    """Checkpoints of one run, or of two to compare, must answer the same prompts."""
    table = pl.DataFrame(
        {
            "uid": [f"u{n}" for n in range(40)],
            "split": ["train", "validation"] * 20,
            "prompt_ids": [[n] for n in range(40)],
        }
    )
    drawn = validation_prompts(PromptRows.of_frame(table), 7, seed=3)
    of_split = table.filter(pl.col("split") == "validation").rows()
    ordered = sorted(of_split, key=lambda row: stream_seed(3, "validation", row[0]))
    assert drawn.rows() == ordered[:7]
    turned = PromptRows.of_frame(table.reverse())
    assert validation_prompts(turned, 7, seed=3)["uid"].to_list() == drawn["uid"].to_list()
    assert validation_prompts(turned, 99, seed=3).height == len(of_split)
