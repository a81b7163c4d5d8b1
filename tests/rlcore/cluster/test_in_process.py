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


def test_a_host_closes_one_object_before_it_builds_the_next(cluster: InProcessCluster) -> None:
    """Two models at once may not fit."""
    host = cluster.spawn(PROBE, 1, name="p", placement=Placement())
    assert host.start("ask", factor=3).result(1) == 3
    host.build(2)
    assert Probe.closed == [1]
    assert host.start("ask").result(1) == 2
    cluster.close()
    cluster.close()
    assert Probe.closed == [1, 2]


def test_nothing_is_imported_before_the_first_build(cluster: InProcessCluster) -> None:
    host = cluster.host("nowhere.at_all:Thing", name="p", placement=Placement())
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        host.build()


def test_more_gpus_than_there_are_are_refused_with_the_remedy(cluster: InProcessCluster) -> None:
    cluster.require_gpus(0)
    with pytest.raises(UserError, match=r"needs 99 GPUs but this process sees .*device to cpu"):
        cluster.require_gpus(99)
