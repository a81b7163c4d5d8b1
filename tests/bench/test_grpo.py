"""The comparison with TRL: what it computes from steps, and that our sides do the same work."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.bench.grpo import IN_PROCESS, PIPELINE, SMALL, TRL, _figures, job_of, sides
from tests.bench.peers.processes import Timed


def timed(seconds: float, gib: float) -> Timed:
    """Two slow steps, which are not counted, and three of ``seconds``."""
    steps = [{"seconds": s, "tokens": 6000} for s in (9.0, 9.0, seconds, seconds, seconds)]
    return Timed(steps, int(gib * 2**30))


def test_ratios_are_of_medians_without_the_first_steps() -> None:
    runs = {
        IN_PROCESS: [timed(0.5, 1), timed(0.25, 2), timed(0.3, 1)],
        PIPELINE: [timed(0.5, 3)],
        TRL: [timed(0.6, 1), timed(0.7, 1), timed(0.6, 1)],
    }
    bound = replace(SMALL, least={IN_PROCESS: 2.0, PIPELINE: 1.5})
    by_name = {measure.name: measure for measure in _figures(bound, runs)}
    assert by_name["0.36 M: in one process, s a step"].value == 0.3
    assert by_name["0.36 M: in one process, peak memory, GiB"].value == 2
    reached = by_name["0.36 M: in one process, TRL's time over ours"]
    assert (reached.value, reached.least, reached.met) == (2.0, 2.0, True)
    missed = by_name["0.36 M: Prefect and Ray, TRL's time over ours"]
    assert (missed.value, missed.met) == (1.2, False)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("side", [IN_PROCESS, PIPELINE])
def test_our_sides_sample_what_they_are_timed_for(side: str, tmp_path: Path) -> None:
    """256 answers a step: of random weights nearly all are cut at 24 tokens."""
    job = asdict(job_of(tmp_path, SMALL)) | {"steps": 3, "folder": str(tmp_path / "run")}
    run = sides()[side](job)
    assert len(run.steps) >= 2
    assert all(5000 < step["tokens"] <= 256 * 24 for step in run.steps)
    assert all(step["seconds"] > step["phases"]["gen"] > 0 for step in run.steps)
    assert run.peak_bytes > 100 * 2**20
