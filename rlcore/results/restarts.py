"""What is recorded of a stage that went on in new workers, within its run."""

from dataclasses import asdict, dataclass

import polars as pl

from rlcore.results.stage_rows import following, newest
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.reader import ArtifactReader
from rlcore.store.tables import polars_schema

KIND = TABLE = "restarts"


@dataclass(frozen=True, slots=True)
class RestartRecord:
    """A row of the table ``restarts``; see there."""

    flow_run_id: str
    stage: str
    number: int
    step: int | None
    cause: str
    remedy: str
    began: str
    seconds: float | None


def record_restart(store: ArtifactStore, row: RestartRecord, lineage: Lineage) -> None:
    """Write ``row`` as ``restarts/<flow run id>/<stage>/<number>``; of several rows of a number
    the newest counts (``rlcore.results.stage_rows``)."""
    restart = f"{row.flow_run_id}/{row.stage}/{row.number:04d}"
    key = following(store.keys(KIND, restart), restart)
    store.put(KIND, key, tables={TABLE: restarts_frame([row])}, lineage=lineage)


def restarts_frame(rows: list[RestartRecord]) -> pl.DataFrame:
    """Return the rows as a table ``restarts``."""
    return pl.DataFrame([asdict(row) for row in rows], schema=polars_schema(TABLE), orient="row")


def restarts_of(store: ArtifactReader, flow_run_id: str, stage: str = "") -> list[RestartRecord]:
    """Return the restarts of a flow run, or of one of its stages, in order.

    Raises ArtifactError where the store cannot be read or one is damaged.
    """
    below = f"{flow_run_id}/{stage}/" if stage else f"{flow_run_id}/"
    found = [store.find(KIND, key) for key in newest(store.keys(KIND, below))]
    rows = [
        RestartRecord(**row)
        for ref in found
        if ref is not None
        for row in store.table(ref, TABLE).iter_rows(named=True)
    ]
    return sorted(rows, key=lambda row: (row.began, row.number))
