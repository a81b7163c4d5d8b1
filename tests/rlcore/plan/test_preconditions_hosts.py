"""The plan says which host holds what, and refuses what the run would refuse later."""

from typing import Any

import pytest

from rlcore.cluster.hosts import Host
from rlcore.plan.preconditions import layout_lines
from schemas.errors import UserError
from tests.rlcore.plan.small import recipe

HOSTS = [Host("b", "10.0.0.2", 1, 2, 0), Host("a", "10.0.0.1", 1, 2, 0)]
TWO = {
    "store": "s3://bucket/store",
    "hardware__device": "cpu",
    "hardware__learner__ranks": 2,
    "hardware__rollout__engines": 3,
}


def lines(hosts: list[Host] = HOSTS, **changed: Any) -> list[str]:
    return layout_lines(recipe(**{**TWO, **changed}), hosts)


def test_the_plan_says_what_lies_where_and_how_weights_travel() -> None:
    assert lines() == [
        "10.0.0.1: policy rank 0, rollout engine 0, rollout engine 2",
        "10.0.0.2: policy rank 1, rollout engine 1",
        "weights: in memory on 10.0.0.1, through Ray's object store to 10.0.0.2",
    ]
    assert lines(hardware__learner__ranks=1, hardware__rollout__engines=1) == [
        "10.0.0.1: policy rank 0, rollout engine 0",
        "weights: in memory on 10.0.0.1",
    ]
    assert lines(HOSTS[:1]) == []


def test_the_hosts_own_address_is_that_of_the_flow() -> None:
    """The flow's own host is filled first, and what users bring runs there."""
    here = Host("here", "127.0.0.1", 1, 8, 0)
    assert (
        lines([HOSTS[1], here])[0]
        == "127.0.0.1: policy rank 0, policy rank 1, rollout engine 0, rollout engine 2"
    )


def test_gpus_of_engines_and_of_all_models_count() -> None:
    large = [Host(str(n), f"10.0.0.{n}", 1, 8, 2) for n in (1, 2)]
    one_each: dict[str, Any] = {
        "hardware__device": "auto",
        "hardware__learner__gpus_per_rank": 1,
        "hardware__rollout__gpus_per_engine": 1,
    }
    assert lines(large, **one_each, hardware__rollout__engines=2) == [
        "10.0.0.1: policy rank 0, policy rank 1",
        "10.0.0.2: rollout engine 0, rollout engine 1",
        "weights: in memory on 10.0.0.1, through Ray's object store to 10.0.0.2",
    ]
    with pytest.raises(UserError, match=r"hardware.rollout.engines: 3 engines of 1 GPUs each"):
        lines(large, **one_each)


def test_a_store_that_is_a_folder_is_refused_for_several_hosts_only() -> None:
    with pytest.raises(UserError, match=r"^store = 'runs/store' is a folder of one host"):
        lines(store="runs/store")
    one: dict[str, Any] = {"hardware__learner__ranks": 1, "hardware__rollout__engines": 1}
    assert lines(store="runs/store", **one)
