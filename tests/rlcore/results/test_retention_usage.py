"""Bytes by kind and by run: shared ones count for each run, and for none alone."""

from pathlib import Path

from rlcore.results.retention import LEFTOVERS, RetentionSettings, by_kind, by_run, survey
from tests.rlcore.results.stores import Filled


def test_bytes_of_runs_kinds_and_leftovers(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "store", tmp_path / "files", iterations=1)
    export = filled.add_run(1)
    filled.add_run(2)
    filled.add_champion("sums", 1, export)
    left = tmp_path / "store" / "policy" / "gone"
    left.mkdir()
    (left / "weights").write_bytes(b"x" * 10)
    plan = survey(filled.store, RetentionSettings(keep_runs=1, least_age_h=0))

    newest, oldest = by_run(plan)
    shared = plan.bytes_of(["dataset/d"])
    assert newest["alone"] < newest["bytes"] - shared
    assert (newest["reclaimable"], newest["kept"]) == (0, True)
    checkpoint = plan.bytes_of(["checkpoint/sums01/000001"])
    assert oldest["alone"] == oldest["reclaimable"] == checkpoint, "the champion keeps the rest"

    rows = {row["kind"]: row for row in by_kind(filled.store, plan)}
    assert rows[LEFTOVERS]["reclaimable"] == 10
    assert rows["policy"]["bytes"] == plan.bytes_of(["policy/sums01", "policy/sums02"])
    assert rows["checkpoint"]["reclaimable"] == checkpoint
    assert sum(row["bytes"] for row in rows.values()) == plan.bytes_of(plan.manifests) + 10
