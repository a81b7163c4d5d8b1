"""Every artifact is read again, of a bucket its own bytes and not the copies on this machine."""

from pathlib import Path

import fsspec

from rlcore.retention.check import check_all
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.retention.stores import put


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
