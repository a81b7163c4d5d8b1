"""Local copies of a bucket's files stay within their bound, and none that is in use goes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from rlcore.store import cache
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.cache import Cache, most_bytes
from schemas.errors import UserError

pytestmark = pytest.mark.timeout(60)
SIZE = 1000

HOLDER = """
import sys
from pathlib import Path
from rlcore.store.cache import Cache
Cache(Path(sys.argv[1]), 0).hand_out(sys.argv[2])
print("handed out", flush=True)
sys.stdin.read()
"""


def fill(folder: Path, count: int) -> list[Path]:
    """Return the folders of copies, the longest unused first."""
    folders = []
    for number in range(count):
        folder_of_copy = folder / f"{number:02x}{'0' * 62}"
        (folder_of_copy / "sub").mkdir(parents=True)
        (folder_of_copy / "sub" / "file").write_bytes(b"x" * SIZE)
        os.utime(folder_of_copy, (number + 1, number + 1))
        folders.append(folder_of_copy)
    return folders


def there(folders: list[Path]) -> list[bool]:
    return [folder.exists() for folder in folders]


def test_the_longest_unused_copies_go_first(tmp_path: Path) -> None:
    """Without a bound the disk of a machine that evaluates for weeks is full one day."""
    folders = fill(tmp_path, 4)
    Cache(tmp_path, 2 * SIZE).use(folders[0].name)
    Cache(tmp_path, 2 * SIZE).added(SIZE)
    assert there(folders) == [True, False, False, True]
    assert not list((tmp_path / ".partial").iterdir())


def test_what_was_used_just_now_stays_though_it_is_too_much(tmp_path: Path) -> None:
    """It may have been handed out, and be opened next."""
    folders = fill(tmp_path, 2)
    for folder in folders:
        Cache(tmp_path, 0).use(folder.name)
    Cache(tmp_path, 0).added(SIZE)
    assert there(folders) == [True, True]


def test_a_folder_that_a_living_process_was_handed_stays(tmp_path: Path) -> None:
    """An engine that loads its weights shard by shard would find the last one gone."""
    folders = fill(tmp_path, 2)
    command = [sys.executable, "-c", HOLDER, str(tmp_path), folders[0].name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "handed out\n"
        os.utime(folders[0], (1, 1))
        Cache(tmp_path, 0).added(SIZE)
        assert there(folders) == [True, False]
        holder.kill()
        holder.wait()
    Cache(tmp_path, 0).added(SIZE)
    assert there(folders) == [False, False]


def test_the_folder_is_measured_again_only_after_much_was_downloaded(tmp_path: Path) -> None:
    bounded = Cache(tmp_path, 100 * SIZE)
    bounded.added(SIZE)
    folders = fill(tmp_path, 102)
    bounded.added(SIZE)
    assert all(there(folders))
    bounded.added(2 * SIZE)
    assert there(folders)[:3] == [False, False, True]


def test_a_store_downloads_again_what_has_gone(tmp_path: Path) -> None:
    """And never takes it for damage of the bucket's file, which would be deleted."""
    store = ArtifactStore("memory://bounded", cache=tmp_path / "cache")
    frames = [
        pl.DataFrame({"stage": ["rl"], "step": [n], "name": ["loss"], "value": [1.0]})
        for n in (1, 2)
    ]
    refs = [
        store.put("m", str(n), tables={"metrics": frame}, lineage=Lineage("r", "c"))
        for n, frame in enumerate(frames)
    ]
    reader = ArtifactStore("memory://bounded", cache=tmp_path / "cache")
    for _ in range(2):
        for ref, frame in zip(refs, frames, strict=True):
            folder = reader.directory(ref)
            assert [path.name for path in folder.iterdir()] == ["metrics.parquet"]
            assert reader.table(ref, "metrics").equals(frame)
            shutil.rmtree(folder)


@pytest.mark.parametrize("text", ["much", "-1", "inf", "nan"])
def test_what_is_no_size_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.SETTING, text)
    with pytest.raises(UserError, match=f"RL_PIPELINE_CACHE_GIB={text} .* is no size; give GiB"):
        most_bytes()


def test_the_bound_is_50_gib_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.SETTING, raising=False)
    assert most_bytes() == 50 * 2**30
    monkeypatch.setenv(cache.SETTING, "0.5")
    assert most_bytes() == 2**29
