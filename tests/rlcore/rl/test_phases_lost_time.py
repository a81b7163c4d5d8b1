"""What the loss of an engine cost a run is among the metrics of the iteration that lost it."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from rlcore.cluster.types import WorkerDied
from rlcore.engines.members import REPLACED, REPLACED_S
from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.results.metrics import stage_metrics
from rlcore.results.summary import lost_time
from rlcore.rl.phases import Phases
from tests.rlcore.rl.test_ahead import run, stale
from tests.rlcore.rl.test_records_history import digits

Make = Callable[..., Phases]


def engine_dies(monkeypatch: pytest.MonkeyPatch, *, calls: tuple[int, ...]) -> None:
    """Let an engine die at these calls, counted over all engines from 1."""
    asked, original = [0], TransformersEngine.generate

    def generate(engine: TransformersEngine, *arguments: Any) -> Any:
        asked[0] += 1
        if asked[0] in calls:
            raise WorkerDied("the engine is gone")
        return original(engine, *arguments)

    monkeypatch.setattr(TransformersEngine, "generate", generate)


def metrics_of(phases: Phases) -> pl.DataFrame:
    return stage_metrics(phases.store, phases.records.key)


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_engine_that_was_replaced_is_counted_with_its_seconds(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch, staleness: int
) -> None:
    over = {**stale(staleness), "rl.validation.every": 9, "rl.iterations": 4}
    whole = make_phases("quickstart", digits, over, key="whole")
    undisturbed = run(whole)
    assert lost_time(metrics_of(whole), []) is None
    assert REPLACED not in set(metrics_of(whole)["name"])

    engine_dies(monkeypatch, calls=(2, 4))
    phases = make_phases("quickstart", digits, over)
    assert run(phases).digest == undisturbed.digest
    found = metrics_of(phases)
    counted = found.filter(pl.col("name") == REPLACED)
    assert counted["value"].sum() == 2
    seconds = found.filter(pl.col("name") == REPLACED_S)
    assert seconds["step"].to_list() == counted["step"].to_list()
    assert min(seconds["value"].to_list()) > 0
    lost = lost_time(found, [])
    assert lost is not None
    assert lost["engines_replaced_s"] == pytest.approx(seconds["value"].sum())
    assert 0 <= lost["productive_share"] < 1
