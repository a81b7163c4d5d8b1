"""The index saves time and changes no answer: what was damaged, replaced or removed shows."""

import os
import shutil
import threading
from pathlib import Path

import polars as pl
import pytest

from rlcore.results.queries import query
from rlcore.store import file_stamps
from rlcore.store.artifacts import ArtifactError, ArtifactStore, DamagedArtifact, Lineage
from rlcore.store.reader import ArtifactReader

SUM = "select sum(value) as v from metrics"
LINEAGE = Lineage("r", "c")


def metrics(value: float) -> pl.DataFrame:
    return pl.DataFrame({"stage": ["rl"], "step": [1], "name": ["loss"], "value": [value]})


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every file as settled, without waiting for it."""
    monkeypatch.setattr(file_stamps, "SETTLED_S", 0.0)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """Three artifacts, and an index of them."""
    store = ArtifactStore(tmp_path / "o'brien's store")
    for number in range(3):
        tables = {"metrics": metrics(2.0**number)}
        store.put("metrics", f"k/{number}", tables=tables, lineage=LINEAGE)
    assert total(store) == 7
    return store


def total(store: ArtifactStore) -> float:
    return query(store, SUM)["v"].item()


def index(store: ArtifactStore) -> list[Path]:
    return sorted((Path(store.root) / ".index").iterdir())


def manifest(store: ArtifactStore, number: int) -> Path:
    return Path(store.root) / "metrics" / "k" / str(number) / "manifest.json"


def flip(path: Path, *, keep_times: bool) -> None:
    """Change a byte of the file's content in place; the size stays."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with open(path, "r+b") as file:
        file.write(content)
    if keep_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_nothing_is_parsed_or_hashed_twice(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes a query over a million rows take less than a second."""

    def read(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(ArtifactReader, "file", read)
    monkeypatch.setattr("rlcore.store.reader.parse_manifest", read)
    assert total(store) == 7


@pytest.mark.parametrize("keep_times", [False, True])
def test_a_damaged_table_is_named(store: ArtifactStore, keep_times: bool) -> None:
    path = manifest(store, 1).with_name("metrics.parquet")
    flip(path, keep_times=keep_times)
    with pytest.raises(DamagedArtifact, match=r"k/1/metrics\.parquet was changed after it was wr"):
        total(store)
    path.unlink()
    with pytest.raises(DamagedArtifact, match=r"k/1/metrics\.parquet is missing"):
        total(store)


@pytest.mark.parametrize("keep_times", [False, True])
def test_a_damaged_manifest_is_named(store: ArtifactStore, keep_times: bool) -> None:
    flip(manifest(store, 1), keep_times=keep_times)
    with pytest.raises(DamagedArtifact, match=r"metrics/k/1"):
        total(store)
    lines: list[str] = []
    assert query(store, SUM, lines.append)["v"].item() == 5
    assert [line.partition(" is left out: ")[0] for line in lines] == [f"{store.root}/metrics/k/1"]


def test_removed_replaced_and_new_artifacts_show_at_once(store: ArtifactStore) -> None:
    store.discard("metrics", "k/0")
    assert total(store) == 6
    store.put("metrics", "k/0", tables={"metrics": metrics(10.0)}, lineage=LINEAGE)
    store.put("metrics", "k/3", tables={"metrics": metrics(100.0)}, lineage=LINEAGE)
    assert total(store) == 116
    manifest(store, 3).unlink()
    assert total(store) == 16
    assert query(store, "select count(*) as n from artifacts")["n"].item() == 3


def test_a_folder_that_takes_another_s_place_is_seen(store: ArtifactStore) -> None:
    """The manifest is whole and older than the index; only its inode tells."""
    one, two = manifest(store, 1).parent, manifest(store, 2).parent
    shutil.copytree(one, one.with_name("spare"), copy_function=shutil.copy2)
    shutil.rmtree(one)
    two.rename(one)
    lines: list[str] = []
    assert query(store, SUM, lines.append)["v"].item() == 1
    assert any("belongs to metrics/k/2, not to metrics/k/1" in line for line in lines)


@pytest.mark.parametrize("damage", ["cut", "changed", "other", "folder gone", "folder a file"])
def test_an_index_that_cannot_be_read_is_made_again(store: ArtifactStore, damage: str) -> None:
    folder, before = Path(store.root) / ".index", [path.name for path in index(store)]
    for path in index(store):
        match damage:
            case "cut":
                path.write_bytes(path.read_bytes()[:-9])
            case "changed":
                flip(path, keep_times=True)
            case "other":
                path.write_bytes(b"")
    if damage.startswith("folder"):
        shutil.rmtree(folder)
    if damage == "folder a file":
        folder.write_text("")
    assert total(store) == 7
    if damage != "folder a file":
        assert len(index(store)) == len(before) == 2


def test_what_the_index_says_cannot_clear_a_damaged_file(store: ArtifactStore) -> None:
    """The index of a store that was copied, damage included, is about other files."""
    path = manifest(store, 1).with_name("metrics.parquet")
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + b"x")
    with pytest.raises(ArtifactError, match=r"metrics\.parquet was changed"):
        total(store)


def test_it_is_no_artifact(store: ArtifactStore) -> None:
    assert index(store)
    assert store.kinds() == ["metrics"]
    assert query(store, "select distinct kind from artifacts")["kind"].to_list() == ["metrics"]
    assert len(store.manifests()) == 3


def test_a_file_that_has_only_just_changed_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change again within a tick of the clock."""
    monkeypatch.setattr(file_stamps, "SETTLED_S", 60.0)
    store = ArtifactStore(tmp_path / "store")
    store.put("metrics", "k", tables={"metrics": metrics(1.0)}, lineage=LINEAGE)
    assert total(store) == 1
    assert not (tmp_path / "store" / ".index").exists()


def test_processes_at_once_each_get_the_answer(store: ArtifactStore) -> None:
    """Each replaces the index files that the others are about to read."""
    found: list[float] = []

    def ask() -> None:
        for _ in range(5):
            shutil.rmtree(Path(store.root) / ".index", ignore_errors=True)
            found.append(total(store))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7] * 20
    assert total(store) == 7
    assert len(index(store)) == 2


def test_the_index_of_a_remote_store_is_on_this_machine(tmp_path: Path) -> None:
    store = ArtifactStore("memory://indexed", cache=tmp_path)
    store.put("metrics", "k/0", tables={"metrics": metrics(1.0)}, lineage=LINEAGE)
    assert total(store) == 1
    assert list((tmp_path / ".index").glob("*/manifests-*.parquet"))
    assert store.kinds() == ["metrics"]
    store.discard("metrics", "k/0")
    store.put("metrics", "k/0", tables={"metrics": metrics(3.0)}, lineage=LINEAGE)
    assert total(store) == 3
    for copy in tmp_path.glob("*/metrics.parquet"):
        flip(copy, keep_times=True)
    assert total(store) == 3, "a damaged copy is fetched again"
