"""One path samples: what the engines finish first must decide nothing."""

import threading
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from pandera.errors import SchemaErrors

from rlcore.cluster.types import WorkerTimeout
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Generation, Sampling
from rlcore.models.weight_digest import WeightStamp
from rlcore.rl.rollout import rollouts_frame
from rlcore.rollout.episodes import collect, in_order
from rlcore.rollout.trajectories import Request, Trajectory, Turn
from schemas.outcomes import FinishReason, StopReason
from schemas.tables import TABLES
from tests.rlcore.rollout.scripted import STAMP, ScriptedTokenizer

TOKENIZER = ScriptedTokenizer(lambda ids: " ".join(map(str, ids)))
BEGUN = threading.Event()
BEGUN.set()


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

    def start(self, method: str, *arguments: Any) -> Answer:
        if method == "begin":
            return Answer(BEGUN, None)
        assert method == "generate"
        self.asked = [list(request.token_ids) for request in arguments[0]]
        answers = [Generation(i, [-1.0] * len(i), FinishReason.STOP, STAMP) for i in self.asked]
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


def test_an_episode_of_several_turns_is_one_row() -> None:
    """Observations stand between the turns, and only what was sampled trains or has a log-prob."""
    reset = Turn(_generation([7, 8], STAMP), observation=[9, 9, 9], reward=0.5, valid=False)
    last = Turn(_generation([5], STAMP), reward=1.0)
    episode = Trajectory(requests(1)[0], (reset, last), "5", StopReason.DONE)
    frame = rollouts_frame([episode], iteration=1)
    TABLES["rollouts"].validate(frame)
    row = frame.row(0, named=True)
    assert row["token_ids"] == [0, 1, 7, 8, 9, 9, 9, 5]
    assert row["prompt_tokens"] == 2
    assert row["loss_mask"] == [False] * 2 + [True] * 2 + [False] * 3 + [True]
    assert row["sampler_logprobs"] == [0, 0, -1, -1, 0, 0, 0, -1]
    assert row["turn_ends"] == [4, 8]
    assert (row["turn_rewards"], row["valid_actions"]) == ([0.5, 1.0], [False, True])
    assert row["turn_versions"] == [0, 0]
    text = {
        "data_source": "s",
        "uid": "u",
        "reward_style": "rule",
        "ground_truth": None,
        "extra_info": "{}",
        "prompt": [],
    }
    asked = replace(episode.request, prompt={**episode.request.prompt, **text})
    scored = replace(episode, request=asked).reward_row()
    assert scored.num_tokens == 3
    assert scored.token_ids == [0, 1, 7, 8, 5], "an observation could write the answer"


@pytest.mark.parametrize(
    ("column", "value", "check"),
    [
        ("loss_mask", [False, True, True, True], "the_prompt_is_masked"),
        ("turn_ends", [5], "turns_end_within_the_episode"),
        ("turn_ends", [1], "turns_end_within_the_episode"),
        ("turn_rewards", [0.0, 0.0], "turns_align"),
        ("sampler_logprobs", [0.0, -1.0], "tokens_masks_and_logprobs_align"),
    ],
)
def test_a_table_whose_episode_contradicts_itself_is_refused(
    column: str, value: list, check: str
) -> None:
    turn = Turn(_generation([7, 8], STAMP))
    frame = rollouts_frame([Trajectory(requests(1)[0], (turn,), "7 8", StopReason.DONE)], 1)
    wrong = frame.with_columns(pl.Series(column, [value], dtype=frame.schema[column]))
    with pytest.raises(SchemaErrors, match=check):
        TABLES["rollouts"].validate(wrong, lazy=True)


@pytest.mark.parametrize("reason", list(FinishReason))
def test_an_episode_of_one_turn_ends_as_its_generation_does(reason: FinishReason) -> None:
    stop = StopReason.of_single_turn(reason)
    assert stop == (StopReason.DONE if reason == FinishReason.STOP else reason)


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


def _generation(ids: list[int], stamp: WeightStamp) -> Generation:
    return Generation(ids, [-1.0] * len(ids), FinishReason.STOP, stamp)


def _one(stamp: WeightStamp) -> Any:
    class One:
        def stream(self, prompts: Any, seeds: Any, sampling: Any) -> Any:
            yield 0, Generation([5], [-0.5], FinishReason.LENGTH, stamp)

    return One()
