"""Two engines, one five times as slow, streaming, two updates ahead: the recipe ``async-gepo``."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rlcore.engines.streaming import RequestStream
from rlcore.rl.phases import Phases
from tests.rlcore.rl.conftest import Dataset
from tests.rlcore.rl.test_ahead import run
from tests.rlcore.rl.test_drawing_ledger import TAIL, asked, check_against_stream
from tests.rlcore.rl.test_records_history import digits

UNEQUAL = {
    "hardware.cluster": "ray",
    "hardware.rollout.engine": "tests.bench.slowed_one:OneSlowed",
    "hardware.rollout.engines": 2,
    "hardware.rollout.max_num_seqs": 4,
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slow_engine_samples_less_and_nothing_is_lost_or_too_old(
    make_phases: Callable[..., Phases], dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: Counter[int] = Counter()
    original = RequestStream._answer

    def counted(stream: RequestStream, engine: Any, wait_s: float) -> Any:
        done = original(stream, engine, wait_s)
        sampled[engine.index] += len(done)
        return done

    monkeypatch.setattr(RequestStream, "_answer", counted)
    phases = make_phases("async-gepo", digits, {**UNEQUAL, **TAIL, "rl.iterations": 5})
    run(phases)
    check_against_stream(phases, dataset)
    ages = asked(phases, dataset, "skipped")
    steps = phases.recipe.rl.update.steps
    assert [row["updates_max"] for row in ages] == [0, steps, *[2 * steps] * 3]
    assert sum(sampled.values()) == 5 * 24 * 2
    assert max(sampled.values()) > 1.5 * min(sampled.values())
