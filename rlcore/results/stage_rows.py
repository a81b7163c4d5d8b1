"""How the rows of ``run_stages`` are named in a store: ``runs/<run>/<stage>``, and what the
stage came to since as ``runs/<run>/<stage>.2``, ``.3``, ... The newest counts. So it is with
those of ``restarts``, ``restarts/<run>/<stage>/<number>``.

None is changed or removed, so that whoever reads finds one at any moment, and a kill loses none.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import polars as pl

from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.reader import ArtifactReader
from rlcore.store.tables import polars_schema


def newest(keys: Iterable[str]) -> list[str]:
    """Return of each stage of each run the key of its newest row, sorted.

    >>> newest(["a/rl", "a/rl.9", "a/rl.10", "a/sft"])
    ['a/rl.10', 'a/sft']
    """
    found: dict[str, tuple[int, str]] = {}
    for key in keys:
        stage, number = _split(key)
        found[stage] = max(found.get(stage, (0, "")), (number, key))
    return sorted(key for _, key in found.values())


def following(keys: Iterable[str], stage: str) -> str:
    """Return the key of the next row of ``stage`` (``<run>/<stage>``), beside those in ``keys``.

    >>> following([], "a/rl"), following(["a/rl", "a/rl.2", "a/rl_2"], "a/rl")
    ('a/rl', 'a/rl.3')
    """
    last = max((number for of, number in map(_split, keys) if of == stage), default=0)
    return stage if last == 0 else f"{stage}.{last + 1}"


def _split(key: str) -> tuple[str, int]:
    stage, _, number = key.rpartition(".")
    return (stage, int(number)) if stage and number.isdecimal() else (key, 1)


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
    seconds: float | None = None


def record_restart(store: ArtifactStore, row: RestartRecord, lineage: Lineage) -> None:
    """Write ``row`` as ``restarts/<flow run id>/<stage>/<number>``; of several rows of a number
    the newest counts (``rlcore.results.stage_rows``)."""
    restart = f"{row.flow_run_id}/{row.stage}/{row.number:04d}"
    key = following(store.keys(KIND, restart), restart)
    frame = pl.DataFrame([asdict(row)], schema=polars_schema(TABLE))
    store.put(KIND, key, tables={TABLE: frame}, lineage=lineage)


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
