"""Reward workers and reward model together give each row one score."""

import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from rlcore.cluster.in_process import InProcessWorker
from rlcore.learner.pool import LearnerPool
from rlcore.models.packing import Sequences
from rlcore.rewards.pool import ModelScores, RewardPool, add_model_score, own_scores
from rlcore.rewards.process import LOAD_S
from rlcore.rewards.types import Kind, Reward, RewardRow
from rlcore.rewards.worker import Parts
from schemas.rl import RewardFunction, RewardSection


class Lengths:
    """Scores a row by the length of its response; "?" cannot be scored."""

    def __init__(self, kind: Kind = "rows") -> None:
        self.kind: Kind = kind
        self.seen: list[RewardRow] = []

    def kinds(self) -> list[Kind]:
        return [self.kind]

    def score(self, rows: list[RewardRow], timeout_s: float, kind: Kind) -> list[Parts]:
        del timeout_s, kind
        self.seen += rows
        return [
            {"mine:length": Reward(r.trajectory_id, "error", None)}
            if r.response == "?"
            else {"mine:length": Reward.of(r, float(len(r.response)), True)}
            for r in rows
        ]


class LastToken:
    """A reward model that says the id of the last token."""

    def values(self, sequences: Sequences, *, targets: str) -> list[np.ndarray]:
        assert targets == "last"
        return [ids[[0, -1]].astype(np.float32) for ids in sequences.token_ids]


MODEL = partial(own_scores, LearnerPool([InProcessWorker.of("reward-model", LastToken())]))


def rows(*responses: str) -> list[RewardRow]:
    return [
        RewardRow(f"t{i}", "s", text, None, {}, "stop", 1, token_ids=[7, 8, i])
        for i, text in enumerate(responses)
    ]


def pool(
    *workers: Any, model: ModelScores | None = None, weight: float = 1.0, **reward: Any
) -> RewardPool:
    functions: list[dict[str, Any]] = [{"name": "mine:length"}] if workers else []
    if model is not None:
        functions.append({"name": "reward_model", "weight": weight})
    section = {"functions": functions, "max_error_fraction": 1.0, **reward}
    handles = [InProcessWorker.of("reward", worker) for worker in workers]
    models = {} if model is None else {"reward_model": model}
    return RewardPool(handles, RewardSection.model_validate(section), timeout_s=5, models=models)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_each_row_is_scored_once_in_its_place(num_workers: int, count: int) -> None:
    """A score in another row's place teaches the opposite of what happened."""
    asked = rows(*("x" * i for i in range(count)))
    found = pool(*(Lengths() for _ in range(num_workers))).score(asked)
    assert [(r.trajectory_id, r.score) for r in found] == [(f"t{i}", i) for i in range(count)]


def test_the_reward_model_counts_by_its_weight_and_is_listed() -> None:
    found = pool(Lengths(), model=MODEL, weight=0.5, offset=-1.0).score(rows("a", "?", "ccc"))
    assert [r.score for r in found] == [0.0, None, 3 + 0.5 * 2 - 1]
    assert [r.parts["reward_model"] for r in found] == [0.0, 1.0, 2.0]


def test_the_reward_model_alone_judges_no_correctness() -> None:
    (first, second) = pool(model=MODEL).score(rows("a", "b"))
    assert (first.score, second.score) == (0.0, 1.0)
    assert (first.correct, second.outcome) == (None, "ok")
    assert pool(model=MODEL).score([]) == []


def test_functions_are_not_sent_what_only_the_model_reads() -> None:
    """Token ids of long answers are most of a message."""
    worker = Lengths()
    pool(worker, model=MODEL).score(rows("a"))
    assert worker.seen[0].token_ids is None


def test_a_row_without_a_score_gets_none_from_the_model() -> None:
    """It would be trained on as if the functions had said 0."""
    function = RewardFunction(name="reward_model")
    lost = add_model_score(Reward("t", "timeout", None), function, 2.0)
    assert (lost.score, lost.parts) == (None, {"reward_model": 2.0})


def test_the_model_is_read_at_the_end_of_the_whole_text() -> None:
    assert MODEL(rows("a", "b", "c")) == [0.0, 1.0, 2.0]


class Slow(Lengths):
    """Takes the seconds that a response names."""

    def score(self, rows: list[RewardRow], timeout_s: float, kind: Kind) -> list[Parts]:
        time.sleep(sum(float(row.response) for row in rows if row.response[0].isdigit()))
        return super().score(rows, timeout_s, kind)


def test_workers_take_rows_as_they_get_free() -> None:
    """A worker with a share of its own would keep the rows behind a slow one waiting."""
    first, second = Slow(), Slow()
    both = pool(first, second)
    both.score(rows("2", *["a"] * 200))
    slow, quick = sorted((len(first.seen), len(second.seen)))
    assert slow < 60 < quick


def test_a_row_begun_ahead_is_scored_once_and_found_done() -> None:
    worker = Slow()
    ahead = pool(worker)
    asked = rows("0.1", "a", "bb")
    for row in asked[:2]:
        ahead.start(row)
    deadline = time.monotonic() + 300
    while len(worker.seen) < 2:
        assert time.monotonic() < deadline, "nothing is scored before it is asked for"
        time.sleep(0.01)
    assert [reward.score for reward in ahead.score(asked)] == [3.0, 1.0, 2.0]
    assert sorted(row.trajectory_id for row in worker.seen) == ["t0", "t1", "t2"]


def test_a_row_that_changed_since_it_was_begun_is_scored_as_it_is_now() -> None:
    """Rollouts from other weights are sampled again under the same ids."""
    worker = Lengths()
    ahead = pool(worker)
    (old,) = rows("aaaa")
    ahead.start(old)
    (new,) = ahead.score(rows("bb"))
    assert new.score == 2.0
    assert ahead.score(rows("bb"))[0].score == 2.0


def test_the_failure_of_a_row_begun_ahead_is_raised_where_it_is_asked_for() -> None:
    class Broken(Lengths):
        def score(self, rows: list[RewardRow], timeout_s: float, kind: Kind) -> list[Parts]:
            raise RuntimeError("worker died")

    ahead = pool(Broken())
    ahead.start(rows("a")[0])
    with pytest.raises(RuntimeError, match="worker died"):
        ahead.score(rows("a"))


def test_batch_functions_are_not_begun_ahead() -> None:
    """Their results depend on what they are given together."""
    worker = Lengths("groups")
    ahead = pool(worker)
    ahead.start(rows("a")[0])
    time.sleep(0.1)
    assert not worker.seen
    assert ahead.score(rows("a"))[0].score == 1.0


def test_judges_have_the_time_that_their_limits_take() -> None:
    """A rate limit would look like a worker that hangs."""
    waited: list[float] = []

    class Handle:
        def __init__(self, worker: Lengths) -> None:
            self.worker = worker

        def start(self, method: str, *arguments: Any) -> "Handle":
            self.said = getattr(self.worker, method)(*arguments)
            return self

        def result(self, timeout_s: float) -> Any:
            waited.append(timeout_s)
            return self.said

    handles: Any = [Handle(Lengths("awaited")), Handle(Lengths("awaited"))]
    section = RewardSection.model_validate({"functions": [{"name": "mine:length"}], "timeout_s": 1})
    judged = RewardPool(handles, section, timeout_s=5, judges_s=lambda count: 100.0 * count)
    assert len(judged.score(rows("a", "b", "c", "d"))) == 4
    _, *limits = waited  # of asking for the functions' kinds
    assert 400 < min(limits) <= max(limits) <= 5 + 2 * 4 * 2 + 2 * LOAD_S + 400


def test_rows_of_two_kinds_of_functions_are_not_handed_over_one_by_one() -> None:
    """Of what waits side by side, one row per call would wait for each in turn."""

    class Both(Lengths):
        calls: list[tuple[Kind, int]]

        def kinds(self) -> list[Kind]:
            return ["rows", "awaited"]

        def score(self, rows: list[RewardRow], timeout_s: float, kind: Kind) -> list[Parts]:
            self.calls.append((kind, len(rows)))
            time.sleep(0.05)
            name = "mine:f" if kind == "rows" else "mine:g"
            return [{name: Reward(r.trajectory_id, "ok", 1.0)} for r in rows]

    worker = Both()
    worker.calls = []
    functions = {"functions": [{"name": "mine:f"}, {"name": "mine:g"}]}
    both = RewardPool(
        [InProcessWorker.of("reward", worker)], RewardSection.model_validate(functions), timeout_s=5
    )
    asked = rows(*["a"] * 100)
    for row in asked:
        both.start(row)
    assert {reward.score for reward in both.score(asked)} == {2.0}
    assert sum(count for kind, count in worker.calls if kind == "awaited") == 100
    assert len(worker.calls) < 40
