"""A checkpoint is written while the loop continues, and a run that ends has written its last
one."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from rlcore.learner.pool import LearnerFuture, LearnerPool
from rlcore.rl.state import LoopState, RLCheckpoints
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from schemas.rl import RLSection

WAIT_S = 30.0
RL = RLSection.model_validate({"preset": "grpo", "iterations": 9})


class Learner:
    """Saves its number once it may; ``go_on`` lets it."""

    def __init__(self, *, free: bool = True) -> None:
        self.number = 0
        self.failure: Exception | None = None
        self._free = threading.Event()
        if free:
            self._free.set()

    def go_on(self) -> None:
        self._free.set()

    def save(self, directory: str | Path) -> LearnerFuture[None]:
        number = self.number

        def wait() -> None:
            assert self._free.wait(WAIT_S), "nobody let the learner save"
            if self.failure is not None:
                raise self.failure
            Path(directory).mkdir(parents=True)
            (Path(directory) / "number").write_text(str(number))

        return LearnerFuture(wait)

    def load(self, directory: str) -> None:
        self.number = int((Path(directory) / "number").read_text())


def of(learner: Learner) -> dict[str, LearnerPool]:
    return {"actor": cast(LearnerPool, learner)}


def at(iteration: int) -> LoopState:
    state: Any = {**LoopState.initial(RL).to_json(), "iteration": iteration, "version": iteration}
    return LoopState(**state)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


@pytest.fixture
def checkpoints(store: ArtifactStore) -> Iterator[RLCheckpoints]:
    with store.hold("run"):
        yield RLCheckpoints(store, "run", Lineage("recipe", "code"), RL)


def kept(store: ArtifactStore) -> list[str]:
    return sorted(store.keys("checkpoint", "run/"))


def test_the_loop_goes_on_while_one_is_written(
    checkpoints: RLCheckpoints, store: ArtifactStore
) -> None:
    """It holds the state of the call, whatever the learner becomes meanwhile."""
    learner = Learner(free=False)
    with checkpoints.writing(print):
        checkpoints.publish(of(learner), at(1))
        checkpoints.finish_write(wait=False)
        assert not kept(store)
        learner.number = 7
        learner.go_on()
    assert kept(store) == ["run/000001"]
    checkpoints.load(of(learner), 1)
    assert learner.number == 0


def test_one_is_written_at_a_time(checkpoints: RLCheckpoints, store: ArtifactStore) -> None:
    """Two copies of the optimizer's state would be on their way to a disk that is too slow."""
    slow = Learner(free=False)
    checkpoints.publish(of(slow), at(1))
    later = threading.Thread(target=checkpoints.publish, args=(of(Learner()), at(2)))
    later.start()
    later.join(0.2)
    assert later.is_alive()
    slow.go_on()
    later.join(WAIT_S)
    checkpoints.finish_write()
    assert kept(store) == ["run/000001", "run/000002"]


def run(
    checkpoints: RLCheckpoints, say: Callable[[str], None], *steps: Callable[[], object]
) -> None:
    """Take the steps of a run, as the loop does."""
    with checkpoints.writing(say):
        for step in steps:
            step()


def raising(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


@pytest.mark.parametrize("wait", [True, False])
def test_a_failed_write_ends_the_run(checkpoints: RLCheckpoints, *, wait: bool) -> None:
    """A run that continues for hours without checkpoints would lose them at the next crash."""
    learner = Learner()
    learner.failure = OSError("no space left on device")

    def next_iteration() -> None:
        while not wait:  # as often as iterations begin
            checkpoints.finish_write(wait=False)
        checkpoints.publish(of(Learner()), at(2))

    with pytest.raises(OSError, match="no space left"):
        run(checkpoints, print, partial(checkpoints.publish, of(learner), at(1)), next_iteration)


def test_a_run_that_fails_has_written_its_last_one(
    checkpoints: RLCheckpoints, store: ArtifactStore
) -> None:
    """And fails by its own error, the write's being logged."""
    said: list[str] = []
    for iteration, failure in ((1, None), (2, OSError("no space left"))):
        learner = Learner(free=False)
        learner.failure = failure
        publish = partial(checkpoints.publish, of(learner), at(iteration))
        soon = threading.Timer(0.1, learner.go_on)
        with pytest.raises(ValueError, match="the run's own"):
            run(checkpoints, said.append, publish, soon.start, raising(ValueError("the run's own")))
    assert kept(store) == ["run/000001"]
    assert said == ["the last checkpoint was not written (OSError: no space left)"]


def test_a_stopped_run_waits_for_no_learner_and_stores_nothing_later(
    checkpoints: RLCheckpoints, store: ArtifactStore
) -> None:
    """The lease is gone by then: another run may be writing the same checkpoint."""
    learner = Learner(free=False)
    publish = partial(checkpoints.publish, of(learner), at(1))
    with pytest.raises(KeyboardInterrupt):
        run(checkpoints, print, publish, raising(KeyboardInterrupt()))
    learner.go_on()
    with pytest.raises(ArtifactError, match="was stopped before"):
        checkpoints.finish_write()
    assert not kept(store)
