"""Artifacts that are whole at once and durable soon."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from rlcore.store import flusher
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from rlcore.store.flusher import Flusher

LINEAGE = Lineage(recipe_digest="r", code_fingerprint="c")


def frame(value: float) -> pl.DataFrame:
    return pl.DataFrame({"stage": ["rl"], "step": [0], "name": ["loss"], "value": [value]})


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], threading.Event]]:
    """The paths that were flushed, in order; the background waits for the event."""
    paths, gate = [], threading.Event()

    def flush(path: Path) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert gate.wait(300)
        os.stat(path)
        paths.append(str(path))

    for module in ("flusher", "local"):
        monkeypatch.setattr(f"rlcore.store.{module}.flush", flush)
    yield paths, gate
    gate.set()


def test_a_record_is_read_before_it_is_durable_and_durable_before_a_checkpoint(
    tmp_path: Path, flushed: tuple[list[str], threading.Event]
) -> None:
    paths, gate = flushed
    store = ArtifactStore(tmp_path)
    record = store.put("m", "a/1", tables={"metrics": frame(1.0)}, lineage=LINEAGE, durable=False)
    assert not paths
    assert ArtifactStore(tmp_path).table(record, "metrics").equals(frame(1.0))
    gate.set()
    store.put("m", "a/2", tables={"metrics": frame(2.0)}, lineage=LINEAGE)
    first = [path.removeprefix(f"{tmp_path}/") for path in paths]
    assert first[:4] == ["m/a/1/metrics.parquet", "m/a/1/manifest.json", "m/a/1", "m/a"]
    assert all(path.startswith(".staging") for path in first[4:-1])
    assert first[-1] == "m/a"


def test_all_is_durable_when_the_lease_ends(
    tmp_path: Path, flushed: tuple[list[str], threading.Event]
) -> None:
    paths, gate = flushed
    store = ArtifactStore(tmp_path)
    with store.hold("a"):
        store.put("m", "a/1", tables={"metrics": frame(1.0)}, lineage=LINEAGE, durable=False)
        threading.Timer(0.1, gate.set).start()
        assert not paths
    assert f"{tmp_path}/m/a/1/metrics.parquet" in paths


def test_a_disk_that_does_not_keep_a_record_stops_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(flusher, "flush", full)
    store = ArtifactStore(tmp_path)
    store.put("m", "a/1", tables={"metrics": frame(1.0)}, lineage=LINEAGE, durable=False)
    with pytest.raises(ArtifactError, match=r"m/a/1 was written and .* No space left on device"):
        store.put("m", "a/2", tables={"metrics": frame(2.0)}, lineage=LINEAGE)
    assert store.find("m", "a/2") is None


def test_a_record_torn_by_a_power_failure_is_made_again(tmp_path: Path) -> None:
    """What the disk had not kept of a file comes back as nothing, or as zeros."""
    for torn in (b"", bytes(300)):
        for name in ("metrics.parquet", "manifest.json"):
            store = ArtifactStore(tmp_path / f"{name}-{len(torn)}")
            tables = {"metrics": frame(1.0)}
            store.put("m", "a/1", tables=tables, lineage=LINEAGE, durable=False)
            (Path(store.root) / "m" / "a" / "1" / name).write_bytes(torn)
            said: list[str] = []
            again = ArtifactStore(store.root)
            assert again.find_or_discard("m", "a/1", said.append) is None
            assert len(said) == 1
            ref = again.put("m", "a/1", tables=tables, lineage=LINEAGE)
            assert again.table(ref, "metrics").equals(frame(1.0))


def test_each_of_two_that_wait_returns_when_all_is_durable(
    tmp_path: Path, flushed: tuple[list[str], threading.Event]
) -> None:
    """A checkpoint's thread and the loop may both put what is durable."""
    paths, gate = flushed
    background = Flusher()
    (tmp_path / "file").touch()
    background.later("m/a/1", [tmp_path / "file"])
    known: list[int] = []

    def wait() -> None:
        background.settle()
        known.append(len(paths))

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join(0.2)
    gate.set()
    for thread in threads:
        thread.join(300)
    assert known == [1, 1]


def test_what_was_removed_meanwhile_counts_as_flushed(tmp_path: Path) -> None:
    background = Flusher()
    background.later("m/a/1", [tmp_path / "gone"])
    background.settle()
