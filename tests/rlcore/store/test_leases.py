"""One writer per key: the second is refused, a dead one replaced, a replaced one fenced off."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import polars as pl
import psutil
import pytest

from rlcore.store import leases
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from rlcore.store.leases import LeaseError
from rlcore.store.local import LocalFiles
from rlcore.store.records import LEASES, RecordStore
from rlcore.store.remote import RemoteFiles

LINEAGE = Lineage(recipe_digest="r", code_fingerprint="c")
FRAME = pl.DataFrame({"stage": ["rl"], "step": [0], "name": ["loss"], "value": [1.0]})

# Holds the key "k", then executes each line that it reads, and prints the result.
HOLDER = """
import sys
import polars as pl
from rlcore.store import leases
from rlcore.store.artifacts import ArtifactStore, Lineage
leases.BEAT_S = 0.2
frame = pl.DataFrame({"stage": ["rl"], "step": [0], "name": ["loss"], "value": [1.0]})
store = ArtifactStore(sys.argv[1], writer="the first run")
with store.hold("k"):
    print("holds", flush=True)
    for line in sys.stdin:
        action, name = line.split()
        try:
            if action == "put":
                store.put("m", name, tables={"metrics": frame}, lineage=Lineage("r", "c"))
            else:
                store.discard("m", name)
            print("done", flush=True)
        except leases.LeaseError as error:
            print(error, flush=True)
"""


class Holder:
    """A process that holds ``k``."""

    def __init__(self, root: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "holds"

    def does(self, action: str) -> str:
        """Return the result of ``action``."""
        assert self.process.stdin is not None
        self.process.stdin.write(action + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def holder_of() -> Iterator[Callable[[str], Holder]]:
    holders: list[Holder] = []

    def start(root: str) -> Holder:
        holders.append(Holder(root))
        return holders[-1]

    yield start
    for holder in holders:
        holder.process.kill()
        holder.process.wait()
        for pipe in (holder.process.stdin, holder.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "BEAT_S", 0.2)
    # S3 has times in whole seconds.
    monkeypatch.setattr(leases, "STALE_S", 3.0)


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("bucket") if request.param == "s3" else str(tmp_path / "store")


def records_of(root: str) -> RecordStore:
    files = RemoteFiles(root, None) if "://" in root else LocalFiles(Path(root))
    return files.records(LEASES)


def _put(store: ArtifactStore, key: str) -> None:
    store.put("m", key, tables={"metrics": FRAME}, lineage=LINEAGE)


def test_a_second_run_is_refused_and_named_the_first(
    root: str, quick: None, holder_of: Callable[[str], Holder]
) -> None:
    holder = holder_of(root)
    store = ArtifactStore(root)
    said = f"k is being made by the first run, process {holder.process.pid} on .* .generation 1"
    with pytest.raises(LeaseError, match=said), store.hold("k"):
        pass
    with store.hold("other"):
        _put(store, "other/1")
    assert holder.does("put k/1") == "done"
    assert holder.process.stdin is not None
    holder.process.stdin.close()
    holder.process.wait(timeout=300)
    with store.hold("k"), store.hold("k"):  # released, and entered twice by one holder
        _put(store, "k/2")
    assert store.keys("m") == ["k/1", "k/2", "other/1"]
    assert not any(manifest.kind == LEASES for manifest in store.manifests())


def test_a_killed_run_is_replaced_at_once(
    root: str, holder_of: Callable[[str], Holder], caplog: pytest.LogCaptureFixture
) -> None:
    holder = holder_of(root)
    holder.process.kill()
    holder.process.wait()
    begun = time.monotonic()
    with ArtifactStore(root).hold("k"):
        pass
    assert time.monotonic() - begun < leases.STALE_S / 2
    assert f"the first run, process {holder.process.pid} on" in caplog.text
    assert "its lease is taken over" in caplog.text


@pytest.mark.slow
def test_a_suspended_run_writes_nothing_once_it_was_replaced(
    root: str, quick: None, holder_of: Callable[[str], Holder]
) -> None:
    holder = holder_of(root)
    assert holder.does("put k/old") == "done"
    os.kill(holder.process.pid, signal.SIGSTOP)
    time.sleep(leases.STALE_S + 1.5)
    store = ArtifactStore(root, writer="the second run")
    with store.hold("k"):
        _put(store, "k/new")
        os.kill(holder.process.pid, signal.SIGCONT)
        for action in ("put k/late", "drop k/old", "drop k/new"):
            said = holder.does(action)
            assert said.startswith(f"k was taken over by the second run, process {os.getpid()}")
            assert f"process {holder.process.pid} on" in said
            assert "generation 1" in said
        _put(store, "k/newer")
    assert "generation 2" in holder.does("put k/late")
    assert store.keys("m", "k/") == ["k/new", "k/newer", "k/old"]


@pytest.mark.parametrize("beats", [True, False])
def test_a_run_on_another_machine_lives_by_its_heartbeat(
    root: str, quick: None, beats: bool
) -> None:
    """Its pid means nothing here, although a process with that number is alive."""
    foreign = {
        "generation": 7,
        "token": "t",
        "run": "a run elsewhere",
        "host": "far",
        "machine": "another",
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
    }
    store = ArtifactStore(root)
    records = records_of(root)
    record = records.exchange("k", None, json.dumps(foreign).encode())
    if not beats:
        with store.hold("k"):
            taken = records.read("k")
            assert taken is not None
            assert json.loads(taken.content)["generation"] == 8
        return
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: store.hold("k").__enter__())
        time.sleep(0.5)
        records.exchange("k", record, json.dumps({**foreign, "beat": "1"}).encode())
        said = f"k is being made by a run elsewhere, process {os.getpid()} on far .generation 7"
        with pytest.raises(LeaseError, match=said):
            asked.result(timeout=300)


def test_a_filesystem_without_comparison_serves_one_process() -> None:
    fsspec.filesystem("memory").store.clear()
    stores = [ArtifactStore("memory://leases"), ArtifactStore("memory://leases")]
    with stores[0].hold("k"):
        _put(stores[0], "k/1")
        with pytest.raises(LeaseError, match="k is being made by"), stores[1].hold("k"):
            pass
    with stores[1].hold("k"):
        assert stores[1].keys("m") == ["k/1"]
    assert stores[1].manifests()[0].kind == "m"


def test_a_lease_that_cannot_be_released_loses_no_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ArtifactStore(tmp_path).hold("k"):
        shutil.rmtree(tmp_path / LEASES)
        (tmp_path / LEASES).write_text("a file where the folder was")
    assert "the lease of k was not released, and will expire" in caplog.text


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the store should be")
    store = ArtifactStore(tmp_path / "store")
    with pytest.raises(ArtifactError, match=r"cannot be written: .*Free"), store.hold("k"):
        pass
