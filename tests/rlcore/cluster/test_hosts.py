"""What lies on which host, and what is refused before anything starts."""

import socket
from collections import Counter

import pytest

from rlcore.cluster import hosts
from rlcore.cluster.hosts import (
    CODE,
    Host,
    Lifeline,
    check_software,
    check_store,
    check_token,
    own_first,
    place,
    software,
)
from rlcore.cluster.types import Placement
from schemas.errors import UserError

A, B, C = (Host(name, f"10.0.0.{n}", 1, 4, 2) for n, name in enumerate("abc", 1))
HOSTS = [A, B, C]
RANK, ENGINE = Placement(threads=2), Placement(threads=2, spread=True)


def lies(
    placement: Placement,
    count: int,
    there: list[Host] = HOSTS,
    gpus: dict[str, float] | None = None,
    engines: dict[str, int] | None = None,
) -> str:
    placed = place(there, placement, count, gpus_used=gpus or {}, engines=engines or {})
    return "".join(one.host[-1] for one in placed)


def test_ranks_are_packed_by_threads_and_engines_are_spread() -> None:
    assert lies(RANK, 5) == "11223"
    assert lies(RANK, 8) == "11223312", "phases alternate, so that more ranks share the cores"
    assert lies(ENGINE, 4) == "1231"
    assert lies(ENGINE, 1, engines={A.address: 1, B.address: 0, C.address: 1}) == "2"


def test_gpus_are_whole_and_what_others_hold_counts() -> None:
    rank, engine = Placement(1.0, threads=1), Placement(0.5, threads=1, spread=True)
    assert lies(rank, 5) == "11223"
    assert lies(rank, 2, gpus={A.address: 1.5}) == "22"
    assert lies(engine, 4, gpus={A.address: 2.0}) == "2323"


def test_what_users_bring_stays_on_the_flows_own_host() -> None:
    assert lies(Placement(), 9) == "1" * 9
    with pytest.raises(UserError, match=r"3 ranks of 1 GPUs each .* has 2 on 10\.0\.0\.1 free"):
        lies(Placement(1.0), 3)


def test_the_flows_own_host_comes_first() -> None:
    assert own_first([C, A, B], B.address) == [B, A, C]


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        (
            Placement(4.0, threads=1, spread=True),
            "hardware.rollout.gpus_per_engine = 4 is more than any node of the Ray cluster holds:"
            " the largest, 10.0.0.1, has 2 GPUs; lower it, or add a larger node",
        ),
        (
            Placement(threads=64),
            "hardware.learner.threads = 64 is more than any node of the Ray cluster holds: the"
            " largest, 10.0.0.1, has 4 CPUs; lower it, or add a larger node",
        ),
        (
            Placement(1.0, threads=1),
            "hardware.learner.ranks: 7 ranks of 1 GPUs each do not fit the Ray cluster, which has"
            " 2 on 10.0.0.1, 2 on 10.0.0.2, 2 on 10.0.0.3 free; lower hardware.learner.ranks, or"
            " add nodes",
        ),
    ],
)
def test_what_no_host_holds_is_refused(placement: Placement, said: str) -> None:
    """Ray would wait for it until the start's timeout."""
    with pytest.raises(UserError) as refused:
        place(HOSTS, placement, 7, gpus_used={}, engines=Counter())
    assert str(refused.value) == said


def test_a_folder_is_no_store_of_two_hosts() -> None:
    """A worker would read a folder of the same name on its own host."""
    check_store("runs/store", {A.address})
    check_store("s3://bucket/prefix", {A.address, B.address})
    for store in ("runs/store", "file:///runs/store"):
        with pytest.raises(UserError, match=r"^store = '.*' is a folder of one host, and workers"):
            check_store(store, {A.address, B.address})


def test_several_hosts_without_a_token_are_refused() -> None:
    check_token("10.0.0.1:6379", [A])
    with pytest.raises(UserError, match=r"is a cluster of 3 nodes that asks for no token"):
        check_token("10.0.0.1:6379", HOSTS)


def test_another_version_is_named() -> None:
    ours = software()
    assert {"Python", "torch", CODE} <= ours.keys()
    check_software(B.address, dict(ours), ours)
    with pytest.raises(UserError, match=r"^node 10\.0\.0\.2 runs torch 2\.12, the flow 2\.13; "):
        check_software(B.address, {**ours, "torch": "2.12"}, {**ours, "torch": "2.13"})
    without = {name: one for name, one in ours.items() if name != "vllm"}
    with pytest.raises(UserError, match=r"runs vllm none, the flow 1"):
        check_software(B.address, without, {**ours, "vllm": "1"})


def test_a_host_that_refuses_is_lost_and_one_that_is_silent_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        port = raylet.getsockname()[1]
        line = Lifeline(Host("a", "127.0.0.1", port, 1, 0))
        assert not line.is_lost(settled=True)
    assert line.is_lost()

    def silent(*given: object, **more: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    monkeypatch.setattr(hosts, "SILENT_S", 0.2)
    assert not line.is_lost(), "a packet may be lost"
    assert line.is_lost(settled=True), "a run would wait for minutes for what starts there"
    assert line.is_lost()
