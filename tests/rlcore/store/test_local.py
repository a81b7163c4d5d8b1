"""A local store: a writer that dies or runs out of disk leaves a whole artifact or none."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rlcore.store import local
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage

ROOT = Path(__file__).parents[3]
LINEAGE = Lineage(recipe_digest="r", code_fingerprint="c")
FRAME = pl.DataFrame({"stage": ["rl"], "step": [0], "name": ["loss"], "value": [1.0]})

# Imports once, then forks one writer per numbered root before any thread is started; writer n dies
# at its n-th system call. The last line printed is how each one ended.
WRITERS = """
import os, resource, signal, sys
from pathlib import Path
import polars as pl
import rlcore.store.tables, schemas.tables
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage

action, model, first, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
calls = 0

def die_at(function, limit):
    def hooked(*args, **kwargs):
        global calls
        calls += 1
        if calls == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return hooked

def write(root, limit):
    if action == "kill":
        for name in ("fsync", "replace", "link", "mkdir", "unlink", "rmdir"):
            setattr(os, name, die_at(getattr(os, name), limit))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    frame = pl.DataFrame({"stage": ["rl"], "step": [0], "name": ["loss"], "value": [1.0]})
    try:
        ArtifactStore(root).put(
            "m", "a/b", tables={"metrics": frame}, directory=model, lineage=Lineage("r", "c")
        )
    except ArtifactError as error:
        print(error, flush=True)
        os._exit(3)
    os._exit(0)

children = []
for step in range(first, last):
    root = sys.argv[5].format(step)
    pid = os.fork()
    if not pid:
        write(root, step)
    if action == "race":
        children.append(pid)
    else:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
for pid in children:
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def write(action: str, model: Path, first: int, last: int, root: Path) -> list[str]:
    command = [sys.executable, "-c", WRITERS, action, str(model), str(first), str(last), str(root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model" / "sub"
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_bytes(b"w" * 100_000)
    return tmp_path / "model"


@pytest.mark.slow
def test_kill_9_at_every_step_leaves_a_whole_artifact_or_none(tmp_path: Path, model: Path) -> None:
    """Half an artifact taken for whole would poison every stage after it."""
    codes = write("kill", model, 1, 31, tmp_path / "store{}")
    assert codes[-1] == "0", "the writer must finish: more steps than this test kills at"
    present = []
    for step, code in enumerate(codes, start=1):
        root = tmp_path / f"store{step}"
        store = ArtifactStore(root)
        found = store.find("m", "a/b")
        present.append(found is not None)
        assert found is not None or code == "-9"
        assert store.keys("m") == (["a/b"] if found else [])
        ref = store.put("m", "a/b", tables={"metrics": FRAME}, directory=model, lineage=LINEAGE)
        store.verify(ref)
        assert store.table(ref, "metrics").equals(FRAME)
    assert present.count(False) >= 8, "the kills must fall before the artifact appears"
    assert codes.count("-9") > present.count(False), "and after it"
    assert present == sorted(present), "once it has appeared it must stay"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_whoever_may_read_the_manifest_may_read_the_files(
    tmp_path: Path, umask: int, mode: int
) -> None:
    """safetensors writes with 0600 whatever the umask: nobody else could load an export."""
    from safetensors.numpy import save_file

    before = os.umask(umask)
    try:
        (tmp_path / "model").mkdir()
        save_file({"w": np.zeros(3)}, tmp_path / "model" / "model.safetensors")
        (tmp_path / "model" / "config.json").write_text("{}")
        (tmp_path / "model" / "run.sh").touch(0o700)
        store = ArtifactStore(tmp_path / "store")
        ref = store.put("m", "a", directory=tmp_path / "model", lineage=LINEAGE)
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in store.directory(ref).iterdir()}
    assert modes == {
        "config.json": mode,
        "manifest.json": mode,
        "model.safetensors": mode,
        "run.sh": 0o700 | (mode & 0o044),
    }


def test_a_dead_writers_files_are_swept(tmp_path: Path, model: Path) -> None:
    """Left alone, they would fill the disk by one checkpoint per crash."""
    assert write("kill", model, 8, 9, tmp_path / "store{}") == ["-9"]
    staging = tmp_path / "store8" / ".staging"
    assert len(list(staging.iterdir())) == 1
    ArtifactStore(tmp_path / "store8").put("m", "x", tables={"metrics": FRAME}, lineage=LINEAGE)
    assert not list(staging.iterdir())


def test_a_discard_cut_short_is_absent_and_can_be_put_again(tmp_path: Path, model: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    store.put("m", "k", directory=model, lineage=LINEAGE)
    (tmp_path / "store" / "m" / "k" / "manifest.json").unlink()
    assert store.find("m", "k") is None
    assert store.keys("m") == []
    store.verify(store.put("m", "k", directory=model, lineage=LINEAGE))


def test_a_full_disk_is_reported_and_nothing_remains(tmp_path: Path, model: Path) -> None:
    """RLIMIT_FSIZE cuts a write short as a full disk does."""
    message, code = write("limit", model, 600, 601, tmp_path / "store{}")
    assert code == "3"
    assert "m/a/b could not be written: File too large. Nothing was stored; free spa" in message
    assert ArtifactStore(tmp_path / "store600").find("m", "a/b") is None
    assert not list((tmp_path / "store600" / ".staging").iterdir())


def test_two_writers_of_one_key_agree(tmp_path: Path, model: Path) -> None:
    """Whoever comes second gets the first one's artifact, not an error."""
    limit = 10_000_000
    assert write("race", model, limit, limit + 4, tmp_path / "store") == ["0"] * 4
    store = ArtifactStore(tmp_path / "store")
    assert store.keys("m") == ["a/b"]
    assert not list((tmp_path / "store" / ".staging").iterdir())


def test_a_root_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ArtifactStore(tmp_path / "file")
    assert store.find("m", "k") is None
    with pytest.raises(ArtifactError, match=r"artifact store .*/file cannot be written"):
        store.put("m", "k", tables={"metrics": FRAME}, lineage=LINEAGE)


def test_leftovers_of_dead_writers_are_swept_and_living_ones_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArtifactStore(tmp_path)
    store.put("m", "k", tables={"metrics": FRAME}, lineage=LINEAGE)
    staging = tmp_path / ".staging"
    assert not list(staging.iterdir())
    host = local._scope()
    dead, alive = staging / f"{host}-4194305-aa", staging / f"{host}-{os.getpid()}-bb"
    (dead / "sub").mkdir(parents=True)
    alive.mkdir()
    # Of another container, which has this host's name and its own pids.
    (staging / f"{os.uname().nodename}.1-4194305-cc").mkdir()
    store.put("m", "k1", tables={"metrics": FRAME}, lineage=LINEAGE)
    assert len(list(staging.iterdir())) == 2, "the other container's may be under way"
    monkeypatch.setattr(local, "STALE_S", -1)  # as if a stage had worked in it for a day
    store.put("m", "k2", tables={"metrics": FRAME}, lineage=LINEAGE)
    assert list(staging.iterdir()) == [alive]
    os.utime(alive, (1, 1))  # older than this process, which has got its maker's pid
    store.put("m", "k3", tables={"metrics": FRAME}, lineage=LINEAGE)
    assert not list(staging.iterdir())
