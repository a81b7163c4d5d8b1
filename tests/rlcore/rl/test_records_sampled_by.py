"""A run that continues finds the engine that it began with."""

from pathlib import Path

import polars as pl
import pytest

from rlcore.results.provenance import ENGINE
from rlcore.rl.records import KIND, forked_engine, recorded_engine
from rlcore.store.artifacts import ArtifactStore, Lineage

ROW = {"iteration": 0, "version": 0, "digest_before": "a", "digest_after": "b", "cursor": 0}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path))


def record(store: ArtifactStore, name: str, engine: str | None) -> None:
    metadata = {} if engine is None else {ENGINE: engine}
    row = pl.DataFrame({**ROW, "iteration": int(name[-6:])})
    weights = pl.DataFrame({"tensor": ["w"], "digest": ["d"]})
    lineage = Lineage("recipe", "code", metadata=metadata)
    store.put(KIND, name, tables={KIND: row, "weights": weights}, lineage=lineage)


def test_the_newest_record_counts(store: ArtifactStore) -> None:
    """Whoever names another engine in a resume continues with that."""
    assert recorded_engine(store, "run") is None
    record(store, "run/000000", "vllm")
    record(store, "runs/000009", "transformers")  # another run
    assert recorded_engine(store, "run") == "vllm"
    record(store, "run/000001", "transformers")
    assert recorded_engine(store, "run") == "transformers"
    record(store, "run/000002", None)  # by a version that recorded none
    assert recorded_engine(store, "run") is None


def test_a_fork_begins_with_the_engine_of_its_iteration(store: ArtifactStore) -> None:
    record(store, "other/000003", "vllm")
    record(store, "other/000004", "transformers")
    assert forked_engine(store, "other@3") == "vllm"
    assert forked_engine(store, "other@5") is None
    assert forked_engine(store, None) is None


def test_a_damaged_record_is_passed_over(store: ArtifactStore, tmp_path: Path) -> None:
    record(store, "run/000000", "vllm")
    record(store, "run/000001", "transformers")
    (damaged,) = (tmp_path / KIND / "run" / "000001").glob("weights*")
    damaged.write_bytes(b"")
    assert recorded_engine(store, "run") == "vllm"
