"""Reward workers and reward model together give each row one score."""

from typing import Any, cast

import numpy as np
import pytest

from rlcore.cluster.in_process import InProcessWorker
from rlcore.learner.pool import LearnerPool
from rlcore.models.packing import Sequences
from rlcore.rewards.pool import RewardPool, add_model_score, model_scores
from rlcore.rewards.types import Reward, RewardRow


class Lengths:
    """Scores a row by the length of its response; "?" cannot be scored."""

    def __init__(self) -> None:
        self.seen: list[RewardRow] = []

    def score(self, rows: list[RewardRow], timeout_s: float, of: int) -> list[Reward]:
        del timeout_s, of
        self.seen += rows
        return [
            Reward(r.trajectory_id, "error", None)
            if r.response == "?"
            else Reward(r.trajectory_id, "ok", float(len(r.response)), correct=True)
            for r in rows
        ]


class LastToken:
    """A reward model that says the id of the last token."""

    def values(self, sequences: Sequences, *, targets: str) -> list[np.ndarray]:
        assert targets == "last"
        return [ids[[0, -1]].astype(np.float32) for ids in sequences.token_ids]


MODEL = cast(LearnerPool, LastToken())


def rows(*responses: str) -> list[RewardRow]:
    return [
        RewardRow(f"t{i}", "s", text, None, {}, "stop", 1, token_ids=[7, 8, i])
        for i, text in enumerate(responses)
    ]


def pool(*workers: Any, **options: Any) -> RewardPool:
    handles = [InProcessWorker.of("reward", worker) for worker in workers]
    return RewardPool(handles, timeout_s=5, row_timeout_s=1, **options)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_each_row_is_scored_once_in_its_place(num_workers: int, count: int) -> None:
    """A score in another row's place teaches the opposite of what happened."""
    asked = rows(*("x" * i for i in range(count)))
    found = pool(*(Lengths() for _ in range(num_workers))).score(asked)
    assert [(r.trajectory_id, r.score) for r in found] == [(f"t{i}", i) for i in range(count)]


def test_the_reward_model_counts_by_its_weight_and_is_listed() -> None:
    found = pool(Lengths(), model=MODEL, model_weight=0.5, offset=-1.0).score(rows("a", "?", "ccc"))
    assert [r.score for r in found] == [0.0, None, 3 + 0.5 * 2 - 1]
    assert [r.parts for r in found] == [{"reward_model": float(i)} for i in range(3)]


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
    lost = add_model_score(Reward("t", "timeout", None), 2.0, 1.0)
    assert (lost.score, lost.parts) == (None, {"reward_model": 2.0})


def test_the_model_is_read_at_the_end_of_the_whole_text() -> None:
    assert model_scores(MODEL, rows("a", "b", "c")).tolist() == [0.0, 1.0, 2.0]
