"""A lost engine is replaced, and what that took is told once."""

from collections.abc import Sequence
from typing import Any

import pytest

from rlcore.cluster.in_process import InProcessWorker
from rlcore.cluster.types import WorkerDied
from rlcore.engines.members import REPLACED, REPLACED_S
from rlcore.engines.pool import EnginePool
from tests.rlcore.engines.test_pool import Echo, stream


class Dying(Echo):
    """Is lost at its first request."""

    def generate(self, requests: list[Any], sampling: Any) -> list[Any]:
        raise WorkerDied("it is gone")

    def close(self) -> None:
        """Hold nothing."""


def pool_of(engines: Sequence[Any], successors: Sequence[Any]) -> EnginePool:
    left = iter(successors)
    workers = [InProcessWorker.of(f"engine {i}", engine) for i, engine in enumerate(engines)]
    return EnginePool(
        workers,
        timeout_s=5,
        sync_timeout_s=5,
        start_new=lambda number: InProcessWorker.of(f"engine {number}", next(left)),
    )


@pytest.mark.parametrize("schedule", ["stream", "pulled"])
def test_losses_are_told_once_and_cost_no_row(schedule: str) -> None:
    prompts = [[number] for number in range(6)]
    whole = stream(pool_of([Echo(), Echo()], []), prompts)
    pool = pool_of([Echo(), Dying()], [Dying(), Echo()])
    assert stream(pool, prompts, schedule) == whole
    lost = pool.taken_losses()
    assert lost.keys() == {REPLACED, REPLACED_S}
    assert lost[REPLACED] == 2
    assert lost[REPLACED_S] > 0
    assert pool.taken_losses() == {}


def test_one_that_is_lost_three_times_in_a_row_ends_the_attempt() -> None:
    pool = pool_of([Dying()], [Dying(), Dying(), Echo()])
    with pytest.raises(WorkerDied, match="it is gone"):
        stream(pool, [[1]])
    assert pool.taken_losses()[REPLACED] == 2
