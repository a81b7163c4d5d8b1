"""The comparison of supervised training with TRL's: its arithmetic, and what our side trains on."""

import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.bench.grpo import base_model
from tests.bench.peers.processes import Timed
from tests.bench.supervised import (
    EQUAL,
    LONGEST,
    MEAN,
    OURS,
    PACKED,
    PADDED,
    PAIRS,
    RAGGED,
    _figures,
    _jobs,
    _sides,
    lengths,
)


def at_rate(rate: int) -> list[Timed]:
    """Two slow steps, which are not counted, and two at ``rate`` tokens per second."""
    steps = [{"seconds": s, "tokens": rate} for s in (9.0, 9.0, 0.5, 1.5)]
    return [Timed(steps, 2**30)]


def test_ragged_rows_are_held_against_the_better_of_padded_and_packed() -> None:
    found = {
        (EQUAL, OURS): at_rate(3000),
        (EQUAL, PADDED): at_rate(1000),
        (RAGGED, OURS): at_rate(2400),
        (RAGGED, PADDED): at_rate(400),
        (RAGGED, PACKED): at_rate(800),
        (PAIRS, OURS): at_rate(1400),
        (PAIRS, PADDED): at_rate(1000),
    }
    ratios = {each.name: each for each in _figures(found) if each.least or each.most}
    assert {name: (each.value, each.met) for name, each in ratios.items()} == {
        f"{EQUAL}: our tokens/s over TRL's": (3.0, True),
        f"{RAGGED}: our tokens/s over TRL's": (3.0, False),
        f"{PAIRS}: our tokens/s over TRL's": (1.4, False),
        "our time per useful token, ragged over equal": (1.25, False),
    }


def test_ragged_lengths_have_the_mean_of_equal_ones() -> None:
    drawn = lengths(random.Random(0), 20_000)
    assert sum(drawn) / len(drawn) == pytest.approx(MEAN, rel=0.03)
    assert max(drawn) == LONGEST
    assert min(drawn) >= 2


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("what", [EQUAL, RAGGED, PAIRS])
def test_our_side_trains_on_what_it_is_timed_for(what: str, tmp_path: Path) -> None:
    base_model(tmp_path / "model", {"max_position_embeddings": 512})
    job = replace(_jobs(tmp_path)[what], steps=3, folder=str(tmp_path / "run"))
    run = _sides(what)[OURS](asdict(job))
    assert len(run.steps) >= 2
    rows = job.rows * (2 if what == PAIRS else 1)
    for step in run.steps:
        assert step["tokens"] == pytest.approx(rows * MEAN, rel=0.0 if what != RAGGED else 0.3)
