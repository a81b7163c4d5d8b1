"""Without Ray the same workers are objects of this process, and are closed like processes."""

import pytest

from rlcore.cluster.in_process import InProcessCluster
from rlcore.cluster.types import Placement
from schemas.errors import UserError

PROBE = "tests.rlcore.cluster.test_in_process:Probe"


class Probe:
    """Remembers who was closed."""

    closed: list[int] = []  # noqa: RUF012 - shared by all on purpose

    def __init__(self, number: int) -> None:
        self.number = number

    def ask(self, factor: int = 1) -> int:
        return self.number * factor

    def close(self) -> None:
        Probe.closed.append(self.number)


@pytest.fixture
def cluster() -> InProcessCluster:
    Probe.closed.clear()
    return InProcessCluster()


def test_workers_are_closed_once(cluster: InProcessCluster) -> None:
    """Two models at once may not fit."""
    worker = cluster.spawn(PROBE, 1, name="p", placement=Placement())
    assert worker.start("ask", factor=3).result(1) == 3
    cluster.spawn(PROBE, 2, name="p", placement=Placement())
    worker.stop()
    assert Probe.closed == [1]
    cluster.close()
    cluster.close()
    assert Probe.closed == [1, 2]


def test_what_cannot_be_built_says_why_at_the_first_call(cluster: InProcessCluster) -> None:
    worker = cluster.spawn("nowhere.at_all:Thing", name="p", placement=Placement())
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        worker.start("ask").result(1)


def test_more_gpus_than_there_are_are_refused_with_the_remedy(cluster: InProcessCluster) -> None:
    cluster.place(Placement(), 1)
    with pytest.raises(UserError, match=r"needs 99 GPUs but this process sees .*device to cpu"):
        cluster.place(Placement(1.0), 99)
