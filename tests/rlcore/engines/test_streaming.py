"""Requests that come at any time: shared as engines get free, and sampled as in whole batches."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlcore.cluster.in_process import InProcessWorker
from rlcore.cluster.types import WorkerTimeout
from rlcore.engines.pool import EnginePool, load_model_directory
from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec, Generation, Sampling, TurnRequest
from rlcore.models.weight_digest import UNVERIFIED, WeightSyncError
from schemas.outcomes import FinishReason
from tests.rlcore.engines.conftest import EngineOf
from tests.rlcore.engines.test_engines import prompts_of

pytestmark = pytest.mark.timeout(180)
SAMPLING = Sampling(max_new_tokens=12)
TURNS = 3


class Steps:
    """A worker whose calls end when the test says so; each returns what it was to finish."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[list[str]] = []
        self.done: list[str] | None = None

    def start(self, method: str, *arguments: Any) -> "Steps":
        if method == "advance":
            self.calls.append([request.key for request in arguments[0]])
        else:
            assert method == "begin"
            self.done = []
        return self

    def result(self, timeout_s: float) -> list[tuple[str, Generation]]:
        del timeout_s
        if self.done is None:
            raise WorkerTimeout("not yet")
        keys, self.done = self.done, None
        return [(key, Generation([1], [0.0], FinishReason.STOP, UNVERIFIED)) for key in keys]

    def stop(self) -> None:
        """Nothing runs."""


def pool_of(*workers: Any, in_flight: int, timeout_s: float = 5) -> EnginePool:
    return EnginePool(workers, timeout_s=timeout_s, sync_timeout_s=5, in_flight=in_flight)


def turns(*keys: str) -> list[TurnRequest]:
    return [TurnRequest(key, [1], 0, 1) for key in keys]


def keys(finished: Sequence[tuple[str, Generation]]) -> list[str]:
    return [key for key, _ in finished]


def test_a_slow_engine_keeps_what_it_has_and_is_given_no_more() -> None:
    slow, fast = Steps("slow"), Steps("fast")
    stream = pool_of(slow, fast, in_flight=2).streaming(SAMPLING)
    stream.submit(turns("a/0", "b/0", "c/0", "d/0", "e/0", "f/0"))
    assert (slow.calls, fast.calls) == ([["a/0", "b/0"]], [["c/0", "d/0"]])
    for ended in (["c/0"], ["d/0", "e/0"], ["f/0"]):
        fast.done = ended
        assert keys(stream.finished(0.1)) == ended
    assert fast.calls[1:] == [["e/0"], ["f/0"]]
    assert len(stream) == 2
    assert stream.finished(0.0) == []
    slow.done = ["b/0", "a/0"]
    assert keys(stream.finished(0.1)) == ["b/0", "a/0"]
    assert len(stream) == 0
    assert stream.finished(60.0) == [], "there is nothing to wait for"


def test_an_engine_is_busy_while_anything_is_under_way() -> None:
    """However many calls that takes: each lasts 50 ms at most."""
    pool = pool_of(engine := Steps("engine"), in_flight=2)
    stream = pool.streaming(SAMPLING)
    stream.submit(turns("a/0", "b/0"))
    for done in ([], ["a/0"], [], ["b/0"]):
        assert pool.taken_spans() == []
        engine.done = done
        stream.finished(0.01)
    (span,) = pool.taken_spans()
    assert (span.lane, span.what) == ("engine 0", "gen")
    stream.submit(turns("a/1"))
    engine.done = ["a/1"]
    stream.finished(0.01)
    (later,) = pool.taken_spans()
    assert later.began_s >= span.ended_s


def test_an_engine_that_finishes_nothing_is_asked_again() -> None:
    """Its call ends after a while so that it can take up what has come meanwhile."""
    engine = Steps("engine")
    stream = pool_of(engine, in_flight=8).streaming(SAMPLING)
    stream.submit(turns("a/0"))
    engine.done = []
    assert stream.finished(0.02) == []
    stream.submit(turns("b/0"))
    engine.done = ["a/0"]
    assert keys(stream.finished(0.02)) == ["a/0"]
    assert engine.calls == [["a/0"], [], ["b/0"]]


def test_an_engine_takes_the_episodes_that_it_knows_first() -> None:
    """Their tokens are in its cache: another engine computes the whole prompt again."""
    first, second = Steps("first"), Steps("second")
    stream = pool_of(first, second, in_flight=1).streaming(SAMPLING)
    stream.submit(turns("a/0", "b/0"))
    stream.submit(turns("new/0"))
    first.done, second.done = ["a/0"], ["b/0"]
    assert sorted(keys(stream.finished(0.1))) == ["a/0", "b/0"]
    stream.submit(turns("b/1", "a/1"))
    first.done, second.done = ["new/0"], ["b/1"]
    assert sorted(keys(stream.finished(0.1))) == ["b/1", "new/0"]
    assert (first.calls, second.calls[:2]) == ([["a/0"], ["new/0"], ["a/1"]], [["b/0"], ["b/1"]])


def test_an_engine_that_does_not_answer_is_named() -> None:
    stuck = Steps("rollout-engine-1")
    stream = pool_of(stuck, timeout_s=0.05, in_flight=1).streaming(SAMPLING)
    stream.submit(turns("a/0"))
    with pytest.raises(WorkerTimeout, match=r"'rollout-engine-1' did not finish advance within"):
        stream.finished(5.0)


def episodes(count: int) -> dict[str, list[int]]:
    return {f"e{row}": ids for row, ids in enumerate(prompts_of(count, length=45))}


def request_of(name: str, turn: int, token_ids: list[int]) -> TurnRequest:
    return TurnRequest(f"{name}/{turn}", token_ids, 100 * turn + int(name[1:]), 5 + turn)


def observed(key: str, token_ids: list[int], row: Generation) -> TurnRequest | None:
    """The next turn of the episode, behind what its environment answers; None at its end."""
    name, _, turn = key.partition("/")
    if int(turn) == TURNS - 1:
        return None
    return request_of(name, int(turn) + 1, [*token_ids, *row.token_ids, 7, len(row.token_ids)])


def in_lockstep(pool: EnginePool) -> dict[str, Generation]:
    """Every episode stays with its engine, in its place."""
    pool.begin()
    first = [request_of(name, 0, ids) for name, ids in episodes(10).items()]
    share = -(-len(first) // len(pool))
    shares = [first[start : start + share] for start in range(0, len(first), share)]
    found: dict[str, Generation] = {}
    while any(shares):
        found |= dict(pool.turn(shares, SAMPLING))
        following = [
            [observed(each.key, list(each.token_ids), found[each.key]) for each in part]
            for part in shares
        ]
        shares = [[each for each in part if each is not None] for part in following]
    return found


def streamed(pool: EnginePool) -> Iterator[tuple[str, Generation]]:
    stream = pool.streaming(SAMPLING)
    asked: dict[str, TurnRequest] = {}
    following = [request_of(name, 0, ids) for name, ids in episodes(10).items()]
    while len(stream) or following:
        asked |= {request.key: request for request in following}
        stream.submit(following)
        following = []
        for key, row in stream.finished(timeout_s=30):
            yield key, row
            request = observed(key, list(asked[key].token_ids), row)
            following += [] if request is None else [request]


@pytest.mark.parametrize(("kind", "in_flight"), [("vllm", 4), ("vllm", 64), ("transformers", 4)])
def test_a_turn_has_the_tokens_of_a_whole_batch(
    engine_of: EngineOf, kind: str, in_flight: int
) -> None:
    """Each has its own seed and budget, whatever is sampled beside it."""
    synced = engine_of(kind, True)
    synced.sync(seed=synced.version + 100)
    pool = pool_of(InProcessWorker.of("engine", synced.engine), in_flight=in_flight)
    whole = in_lockstep(pool)
    assert len(whole) == 10 * TURNS
    assert all(len(row.token_ids) == 5 + int(key[-1]) for key, row in whole.items())
    found = dict(streamed(pool))
    assert found.keys() == whole.keys()
    same = [found[key].token_ids == row.token_ids for key, row in whole.items()]
    # Batches of other shapes round differently (test_a_row_depends_on_its_own_seed_only).
    assert sum(same) >= (len(whole) if kind == "vllm" else 0.9 * len(whole))


def test_lockstep_on_two_transformers_engines_gives_the_same_bits_again(
    model_dirs: dict[bool, Path],
) -> None:
    """An engine's log-probs depend on the batch in the last bits, and GEPO's loss reads them: a
    resumed run must share the episodes as the first one did."""

    def played() -> dict[str, Generation]:
        spec = EngineSpec(str(model_dirs[True]), max_model_len=256)
        workers = [InProcessWorker.of(name, TransformersEngine(spec)) for name in ("0", "1")]
        pool = pool_of(*workers, in_flight=8)
        load_model_directory(pool, model_dirs[True])
        return in_lockstep(pool)

    first = played()
    assert len(first) == 10 * TURNS
    assert played() == first


def test_vllm_leaves_what_is_under_way_for_the_next_call(engine_of: EngineOf) -> None:
    """And forgets it when another rollout begins."""
    synced = engine_of("vllm", True)
    synced.sync(seed=synced.version + 100)
    engine = synced.engine
    long, short = TurnRequest("long", [5, 6], 1, 9), TurnRequest("short", [5, 7], 2, 2)
    alone = synced.generate([[5, 6]], [1], Sampling(max_new_tokens=9))[0]
    engine.begin()
    assert engine.advance([long], SAMPLING, 0.0) == []
    assert engine.advance([short], SAMPLING, 0.0) == []
    assert keys(engine.advance([], SAMPLING, 0.0)) == ["short"]
    ((key, row),) = engine.advance([], SAMPLING, 60.0)
    assert (key, row.token_ids) == ("long", alone.token_ids)
    engine.advance([long], SAMPLING, 0.0)
    engine.begin()
    assert engine.advance([], SAMPLING, 60.0) == []
    engine.advance([long], SAMPLING, 0.0)
    synced.sync(seed=synced.version + 100)
    assert engine.advance([], SAMPLING, 60.0) == []


def test_an_engine_without_proven_weights_streams_nothing(engine_of: EngineOf) -> None:
    synced = engine_of("transformers", False)
    synced.sync(seed=3)
    with synced.fault("dropped"), pytest.raises(WeightSyncError):
        synced.engine.load_weights(synced.publish(synced.model))
    stream = pool_of(InProcessWorker.of("engine", synced.engine), in_flight=4).streaming(SAMPLING)
    stream.submit(turns("a/0"))
    with pytest.raises(WeightSyncError, match="holds no proven weights"):
        stream.finished(60.0)
