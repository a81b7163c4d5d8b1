"""Rows of ``run_stages`` for runs that a test makes by hand."""

from dataclasses import replace

from rlcore.results.run import StageRecord

FLOW_RUN = "-0000-4000-8000-000000000000"


def stage_record(
    run: str, stage: str, *, kind: str, key: str, sha256: str | None = None
) -> StageRecord:
    """Return the row of a stage of the run whose folder is ``run``; ended where it has a digest."""
    row = StageRecord(
        flow_run_id=run.rpartition("-")[2] + FLOW_RUN,
        run=run,
        recipe=run.rpartition("-")[0],
        recipe_digest="r",
        seed=0,
        overrides="{}",
        stage=stage,
        result_kind=kind,
        result_key=key,
        records_key=key,
        sha256=sha256,
        cached=None,
        began="2026-01-01T00:00:00.000001+00:00",
        seconds=None,
    )
    return row if sha256 is None else replace(row, cached=False, seconds=1.0)
