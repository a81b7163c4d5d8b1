"""One path samples: what the engines finish first must decide nothing."""

import threading
from typing import Any

import polars as pl
import pytest

from rlcore.cluster.types import WorkerTimeout
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Generation, Sampling
from rlcore.rl.rollout import rollouts_frame
from rlcore.trajectories.collect import collect, in_order
from rlcore.trajectories.types import Request
from rlcore.weights.stamp import WeightStamp
from schemas.outcomes import FinishReason
from schemas.tables import TABLES
from tests.rlcore.trajectories.scripted import STAMP, ScriptedTokenizer

TOKENIZER = ScriptedTokenizer(lambda ids: " ".join(map(str, ids)))


class Answer:
    """A call that is done once ``done`` is set."""

    def __init__(self, done: threading.Event, value: Any) -> None:
        self._done, self._value = done, value

    def result(self, timeout_s: float) -> Any:
        if not self._done.wait(timeout_s):
            raise WorkerTimeout("not yet")
        return self._value


class Engine:
    """Answers each prompt with its own tokens, stamped, when ``done`` is set."""

    def __init__(self, name: str, done: threading.Event) -> None:
        self.name, self._done = name, done
        self.asked: list[list[int]] = []

    def start(self, method: str, prompts: list[list[int]], *_: Any) -> Answer:
        assert method == "generate"
        self.asked = prompts
        answers = [Generation(ids, [-1.0] * len(ids), FinishReason.STOP, STAMP) for ids in prompts]
        return Answer(self._done, answers)

    def stop(self) -> None:
        """Nothing runs."""


def requests(count: int) -> list[Request]:
    return [
        Request(f"t{i}", {"uid": f"u{i}", "prompt_ids": [i, i + 1]}, sample=0, seed=i)
        for i in range(count)
    ]


def test_a_slow_engine_holds_up_its_own_share_only() -> None:
    slow, fast = threading.Event(), threading.Event()
    engines = [Engine("slow", slow), Engine("fast", fast)]
    pool = EnginePool(engines, timeout_s=20, sync_timeout_s=1)
    fast.set()
    asked = requests(5)
    arriving = collect(asked, Sampling(), pool, TOKENIZER)
    first = [next(arriving), next(arriving)]
    assert [t.request.trajectory_id for t in first] == ["t3", "t4"]
    assert [t.text for t in first] == ["3 4", "4 5"]
    slow.set()
    assert [t.request.trajectory_id for t in arriving] == ["t0", "t1", "t2"]
    assert [len(engine.asked) for engine in engines] == [3, 2], "the samples of a prompt share one"


def test_the_recorded_table_does_not_know_who_was_first() -> None:
    tables = []
    for first in (0, 1):
        events = [threading.Event(), threading.Event()]
        events[first].set()
        threading.Timer(0.2, events[1 - first].set).start()
        workers = [Engine(f"engine-{i}", event) for i, event in enumerate(events)]
        pool = EnginePool(workers, timeout_s=20, sync_timeout_s=1)
        asked = requests(6)
        done = in_order(asked, collect(asked, Sampling(), pool, TOKENIZER))
        tables.append(rollouts_frame(done, iteration=1))
    assert tables[0].equals(tables[1])
    assert tables[0]["trajectory_id"].to_list() == [f"t{i}" for i in range(6)]
    TABLES["rollouts"].validate(tables[0])


def test_each_row_carries_the_stamp_of_its_own_generation() -> None:
    """Asked afterwards, an engine may have loaded others."""
    stamps = [WeightStamp(3, "old"), WeightStamp(4, "new")]
    done = [
        next(collect([request], Sampling(), _one(stamp), TOKENIZER))
        for request, stamp in zip(requests(2), stamps, strict=True)
    ]
    rows = rollouts_frame(done, iteration=1).select("weight_version", "weight_digest")
    assert rows.equals(pl.DataFrame({"weight_version": [3, 4], "weight_digest": ["old", "new"]}))


def test_an_engine_that_does_not_answer_is_named() -> None:
    stuck = Engine("rollout-engine-1", threading.Event())
    pool = EnginePool([stuck], timeout_s=0.2, sync_timeout_s=1)
    with pytest.raises(WorkerTimeout, match=r"'rollout-engine-1' did not finish generate within"):
        list(collect(requests(1), Sampling(), pool, TOKENIZER))


def _one(stamp: WeightStamp) -> Any:
    class One:
        def stream(self, prompts: Any, seeds: Any, sampling: Any) -> Any:
            yield 0, Generation([5], [-0.5], FinishReason.LENGTH, stamp)

    return One()
