"""What ``make chaos N=...`` deals out, and what its table says of it."""

from collections import Counter

import pytest

from tests.chaos import blows
from tests.chaos.blows import DEPLOYED_KINDS, HARASSED, INLINE_KINDS, Blow


@pytest.mark.parametrize(("number", "inline", "deployed"), [(200, 150, 50), (12, 9, 3), (3, 3, 0)])
def test_a_quarter_is_deployed(number: int, inline: int, deployed: int) -> None:
    one, other = blows.plan(number)
    assert (len(one), len(other)) == (inline, deployed)
    assert other.count(HARASSED) == min(1, deployed)


def test_a_short_run_deals_every_kind_of_inline_blow() -> None:
    """The default must show at once what a change broke."""
    assert set(blows.plan(12)[0]) == set(INLINE_KINDS)


def test_a_long_run_deals_every_kind() -> None:
    inline, deployed = map(Counter, blows.plan(200))
    assert set(inline) == set(INLINE_KINDS)
    assert set(deployed) == {*DEPLOYED_KINDS, HARASSED}
    assert min(inline.values()) >= 10
    assert sorted(deployed.values()) == [1, *[4] * 11, 5]


def test_a_blow_is_the_same_in_a_longer_run() -> None:
    """Else what failed at N=200 could not be looked at with a smaller N."""
    drawn = [blows.generator(0, "killed", 3).random() for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != blows.generator(1, "killed", 3).random()


def test_a_stopped_process_is_one_blow() -> None:
    assert blows.of_victims(["engine", "stopped-engine"], 2) == ["engine"] * 2 + ["stopped-engine"]


def good() -> Blow:
    return Blow("inline", "process, SIGKILL", "artifact 3", "ended", equal=True, seconds=4.4)


@pytest.mark.parametrize("change", [{"equal": False}, {"equal": None}, {"orphans": ["7 python"]}])
def test_other_weights_or_orphans_are_a_failure(change: dict[str, object]) -> None:
    blow = good()
    assert blow.held
    for name, value in change.items():
        setattr(blow, name, value)
    assert not blow.held


def test_other_weights_are_named() -> None:
    blow = good()
    blow.compare("a" * 64, "b" * 64)
    assert not blow.held
    assert blow.faults == [f"other weights: {'a' * 12}, not {'b' * 12}"]


def test_the_table_has_a_row_per_blow() -> None:
    bad = Blow("deployed", "engine, SIGKILL", "iteration 2", "ended", faults=["a|b\nc"])
    lines = list(blows.table([good(), bad]))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["point", "component", "outcome", "digest equal", "orphans", "seconds"]
    assert cells[2] == ["artifact 3", "inline process, SIGKILL", "ended", "yes", "0", "4"]
    assert cells[3][2:4] == ["ended; FAULT: a/b c", "none"]
    assert len({len(line) for line in lines}) == 1
