"""Every artifact is read again, of a bucket its own bytes and not the copies on this machine."""

import os
from pathlib import Path

import fsspec

from rlcore.results.retention import check_all
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.results.stores import put


def faults(store: ArtifactStore) -> dict[str, str]:
    return {f"{one.kind}/{one.key}": one.fault for one in check_all(store) if one.fault}


def test_each_kind_of_damage_is_named(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    for key in "abcde":
        put(store, "policy", key)
    assert [one.key for one in check_all(store)] == list("abcde")
    assert faults(store) == {}
    top = tmp_path / "store" / "policy"
    whole = (top / "a" / "metrics.parquet").read_bytes()
    (top / "a" / "metrics.parquet").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (top / "b" / "metrics.parquet").unlink()
    (top / "c" / "manifest.json").write_text("{")
    edited = (top / "d" / "manifest.json").read_text().replace('"producer": ""', '"producer": "x"')
    (top / "d" / "manifest.json").write_text(edited)
    found = faults(store)
    assert "was changed after it was written" in found["policy/a"]
    assert found["policy/b"].endswith("metrics.parquet is missing")
    assert "is not JSON" in found["policy/c"]
    assert "manifest.json was changed after it was written" in found["policy/d"]
    assert "policy/e" not in found


def test_what_no_writer_left_is_damage_and_ends_no_reader(tmp_path: Path) -> None:
    """A pipe in the place of a manifest was waited for, and a link was passed over."""
    store = ArtifactStore(tmp_path / "store")
    for key in "abcde":
        put(store, "policy", key)
    top = tmp_path / "store" / "policy"
    (top / "a" / "manifest.json").write_text("[" * 100_000)
    for key in "bc":
        (top / key / "manifest.json").unlink()
    os.mkfifo(top / "b" / "manifest.json")
    (top / "c" / "manifest.json").mkdir()
    (top / "d").rename(tmp_path / "elsewhere")
    (top / "d").symlink_to(tmp_path / "elsewhere")
    found = faults(store)
    assert "is nested too deeply" in found["policy/a"]
    assert "is not JSON" in found["policy/b"]
    assert "policy/d is a symbolic link" in found["policy/d"]
    assert "policy/e" not in found
    told: list[str] = []
    assert [manifest.key for manifest in store.manifests(on_damage=told.append)] == ["e"]
    assert len(told) == 2


def test_copies_on_this_machine_prove_nothing_of_a_bucket(tmp_path: Path) -> None:
    store = ArtifactStore("memory://checked", cache=tmp_path)
    ref = put(store, "policy", "a")
    store.verify(ref)
    fs = fsspec.filesystem("memory")
    whole = fs.cat_file("/checked/policy/a/metrics.parquet")
    fs.pipe_file("/checked/policy/a/metrics.parquet", whole[:-1] + bytes([whole[-1] ^ 1]))
    store.verify(ref)
    assert "was changed after" in faults(store)["policy/a"]
    fs.rm("/checked", recursive=True)
