"""Restarts are recorded by run and stage, and read in the order in which they were."""

from dataclasses import replace
from pathlib import Path

from rlcore.results.queries import query
from rlcore.results.stage_rows import RestartRecord, record_restart, restarts_of
from rlcore.store.artifacts import ArtifactStore, Lineage

MADE = Lineage("r", "c")
FIRST = RestartRecord(
    flow_run_id="f-1",
    stage="rl",
    number=1,
    step=3,
    cause="worker 'learner-0' died during update",
    remedy="new workers",
    began="2026-01-01T00:00:01+00:00",
    seconds=None,
)


def test_a_run_has_its_restarts_in_order_each_once(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    earlier = replace(FIRST, stage="sft", step=None, began="2026-01-01T00:00:00+00:00")
    second = replace(FIRST, number=2, began="2026-01-01T00:00:02+00:00")
    other = replace(FIRST, flow_run_id="f-11")
    for row in (second, FIRST, earlier, other):
        record_restart(store, row, MADE)
    known = replace(FIRST, seconds=41.5)
    record_restart(store, known, MADE)
    assert restarts_of(store, "f-1") == [earlier, known, second]
    assert restarts_of(store, "f-1", "rl") == [known, second]
    assert restarts_of(store, "f-2") == []


def test_lost_time_is_a_query(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    for number, seconds in ((1, 20.0), (2, 22.5)):
        record_restart(store, replace(FIRST, number=number, seconds=seconds), MADE)
    total = query(store, "select sum(seconds) as s from restarts where flow_run_id = 'f-1'")
    assert total["s"].to_list() == [42.5]
