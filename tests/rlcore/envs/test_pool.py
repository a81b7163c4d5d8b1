"""Episodes over two real workers of the cluster in this process."""

from collections.abc import Iterator

import pytest

from rlcore.cluster.in_process import InProcessWorker
from rlcore.envs.pool import EnvironmentPool
from rlcore.envs.process import EnvironmentProcess
from rlcore.envs.types import Call
from schemas.environment import EnvironmentSection

pytestmark = pytest.mark.timeout(60)
SECTION = EnvironmentSection(name="tests.rlcore.envs.samples:Counter")


@pytest.fixture
def workers() -> Iterator[list[EnvironmentProcess]]:
    made = [EnvironmentProcess(SECTION) for _ in range(2)]
    yield made
    for worker in made:
        worker.close()


def test_an_episode_stays_with_its_worker(workers: list[EnvironmentProcess]) -> None:
    handles = [InProcessWorker.of(f"environment-{i}", each) for i, each in enumerate(workers)]
    pool = EnvironmentPool(handles, SECTION, timeout_s=30)
    names = [f"e{i}" for i in range(5)]
    pool.answers([Call(name, row={}, seed=i) for i, name in enumerate(names)])
    for turn in ("one", "two"):
        answers = pool.answers([Call(name, f"{name}-{turn}") for name in names])
    steps = [answers[name].step for name in names]
    assert [step and step.messages[0]["content"] for step in steps] == [
        f"{i} e{i}-one e{i}-two" for i in range(5)
    ]
    assert pool.tools == ()
    for name in names:
        pool.end(name)
    assert pool.answers([]) == {}
