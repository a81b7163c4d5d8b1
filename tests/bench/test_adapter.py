"""The comparison of adapters with TRL's: its arithmetic."""

from tests.bench.adapter import step_figures
from tests.bench.grpo import IN_PROCESS, TRL
from tests.bench.peers.processes import Timed


def timed(seconds: list[float], gib: float) -> Timed:
    return Timed([{"seconds": each} for each in seconds], int(gib * 2**30))


def test_rounds_are_compared_one_by_one_behind_the_warmup() -> None:
    found = {
        IN_PROCESS: [timed([9, 9, 2], 1.0), timed([9, 9, 4], 2.0)],
        TRL: [timed([90, 90, 6], 3.0), timed([90, 90, 4], 4.0)],
    }
    by_name = {measure.name: measure for measure in step_figures(found)}
    assert by_name["TRL's time over ours"].value == 2.0
    assert by_name["TRL's time over ours"].note == "1.00 to 3.00"
    assert by_name["our memory over TRL's"].value == 0.5
    assert by_name["our memory over TRL's"].met
