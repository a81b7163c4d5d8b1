"""Of two writers of one record at once, one wins, wherever the store lies."""

import errno
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from rlcore.store.artifacts import ArtifactError, ArtifactStore
from rlcore.store.local import LocalFiles
from rlcore.store.records import LEASES, LocalRecords, RecordStore
from rlcore.store.remote import RemoteFiles


def records_of(root: str) -> RecordStore:
    """Return the records of the store at ``root``, as a writer that has just come to it has."""
    files = RemoteFiles(root, None) if "://" in root else LocalFiles(Path(root))
    return files.records(LEASES)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("bucket") if request.param == "s3" else str(tmp_path / "store")


def test_one_of_eight_writers_wins(root: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        for race in range(20):
            for begun in (False, True):
                found = records_of(root).read(f"race-{race}")
                assert (found is not None) == begun
                won = pool.map(
                    lambda n, race=race, found=found: records_of(root).exchange(
                        f"race-{race}", found, f"{n} after {found}".encode()
                    ),
                    range(8),
                )
                assert sum(record is not None for record in won) == 1


def test_a_store_that_knows_no_conditions_says_so(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some S3-compatible stores refuse If-None-Match: a retry is useless."""
    store = ArtifactStore(bucket)
    filesystem, _ = fsspec.url_to_fs(bucket)  # the store's own: fsspec keeps one per place

    def refuse(path: str, content: bytes, **asked: str) -> None:
        raise OSError(errno.EINVAL, "A header you provided implies functionality not implemented")

    monkeypatch.setattr(filesystem, "pipe_file", refuse)
    with pytest.raises(ArtifactError, match=r"could not write .*not implemented"), store.hold("k"):
        pass


def test_a_lock_that_is_not_released_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore.store.records.LOCK_S", 0.2)
    records = LocalRecords(tmp_path)
    with records.guard("k"), pytest.raises(ArtifactError, match=r"k\.lock has been locked for"):
        records.exchange("k", None, b"x")


@pytest.fixture(params=["local", "memory"])
def quick_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Two kinds of store that need no server."""
    if request.param == "local":
        return str(tmp_path / "store")
    fsspec.filesystem("memory").store.clear()
    return "memory://records"


def test_a_record_is_written_only_over_the_version_that_was_read(quick_root: str) -> None:
    """A run that stood still must not overwrite what its replacement has written meanwhile."""
    records = records_of(quick_root)
    assert records.read("k") is None
    first = records.exchange("k", None, b"1")
    assert first is not None
    assert records.read("k") == first
    assert records.exchange("k", None, b"another first") is None
    second = records.exchange("k", first, b"2")
    assert second is not None
    assert records.exchange("k", first, b"late") is None
    assert records.read("k") == second
    assert records.exchange("other", second, b"x") is None, "a record that was removed is gone"


def test_a_record_is_as_old_as_its_last_write(quick_root: str) -> None:
    """By the store's own clock: a heartbeat is judged from a machine whose clock may be off."""
    records = records_of(quick_root)
    record = records.exchange("k", None, b"1")
    assert 0.0 <= records.age_s("k") < 5.0
    assert records.read("k") == record, "asking the age must not change the record"


def test_the_age_of_a_record_is_told_where_only_reading_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = LocalRecords(tmp_path)
    records.exchange("k", None, b"1")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    assert -1.0 < records.age_s("k") < 300.0


def test_a_failed_exchange_leaves_the_record_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = LocalRecords(tmp_path / "store" / ".leases")
    record = records.exchange("k", None, b"1")

    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        with pytest.raises(ArtifactError, match=r"store .*/store cannot be written: No space left"):
            records.exchange("k", record, b"2")
    assert records.read("k") == record
    assert {path.name for path in records.folder.iterdir()} == {"k", "k.lock"}


STOPPED = """
import os, sys, threading, time
from pathlib import Path
from rlcore.store import records
from rlcore.store.records import LocalRecords

records.LOCK_S = 3.0
store = LocalRecords(Path(sys.argv[1]))

def beats():
    while True:
        with store.guard("k"):
            time.sleep(0.4)
        time.sleep(0.2)

threading.Thread(target=beats, daemon=True).start()
time.sleep(0.1)
print("waits", flush=True)
for _ in range(20):
    with store.guard("k"):
        pass
print("held", flush=True)
"""


@pytest.mark.slow
def test_who_was_stopped_while_it_waited_calls_nobody_hung(tmp_path: Path) -> None:
    """The time in which a machine slept counted, and its run ended where it continued."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "held\n")
