"""Tables of other versions in one view, and the files without the views."""

import re
from pathlib import Path

import duckdb
import polars as pl
import pytest

from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from schemas.table_list import VERSIONS
from schemas.tables import ADVANTAGES, TABLES
from tests.rlcore.results import test_queries as recorded

DOCUMENT = Path(__file__).parents[3] / "docs/reference/tables.md"


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def test_a_column_that_a_version_added_is_null_in_older_tables(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorded.advantages
    with monkeypatch.context() as before:
        before.setitem(VERSIONS, "advantages", 3)
        before.setitem(TABLES, "advantages", ADVANTAGES.remove_columns(["penalty"]))
        before.setattr(f"{recorded.__name__}.advantages", lambda n: made(n).drop("penalty"))
        recorded.run(store, "old", 1.0)
    old = store.find("advantages", "old/000000")
    assert old is not None
    assert store.manifest(old).schema_versions == {"advantages": "advantages/v3"}
    assert store.table(old, "advantages")["penalty"].to_list() == [None, None]
    monkeypatch.setattr(
        f"{recorded.__name__}.advantages", lambda n: made(n).with_columns(penalty=pl.lit(0.1))
    )
    recorded.run(store, "new", 1.0)
    rows = query(store, "SELECT key, penalty, positive, advantages FROM advantages ORDER BY key")
    assert rows["penalty"].to_list() == [0.1, 0.1, None, None]
    sums = query(store, "SELECT records_key, sum(penalty) AS s FROM trajectories GROUP BY 1")
    assert dict(sums.iter_rows()) == {"old": None, "new": pytest.approx(0.2)}


def test_plain_duckdb_joins_by_path_and_trajectory(store: ArtifactStore) -> None:
    """As tables.md says: a rollout's records share its key, which is in their paths."""
    recorded.run(store, "a", 1.0)
    recorded.run(store, "b", 0.25)
    root = str(store.root).replace("'", "''")
    (statement,) = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    found = duckdb.connect().execute(statement.replace("runs/store", root))
    rows = pl.DataFrame(
        found.fetchall(), [each[0] for each in found.description or ()], orient="row"
    )
    assert dict(rows.group_by("records").agg(pl.col("score").mean()).iter_rows()) == {
        "a": 1.0,
        "b": 0.25,
    }
    assert rows["iteration"].to_list() == [0] * 6
