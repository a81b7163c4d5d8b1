"""What is kept of an artifact that was pruned: whole before it goes, and never in its way."""

from pathlib import Path

import fsspec
import pytest

from rlcore.store.artifacts import ArtifactStore, LeaseError
from rlcore.store.tombstones import PrunedArtifact
from tests.rlcore.results.stores import put


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "store")
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists("/pruned"):
        filesystem.rm("/pruned", recursive=True)
    return "memory://pruned"


def test_a_pruned_artifact_is_named_with_date_and_reason(root: str, tmp_path: Path) -> None:
    store = ArtifactStore(root, cache=tmp_path / "cache")
    refs = [put(store, kind, "k/000001") for kind in ("rollouts", "rewards")]
    planned = {f"{ref.kind}/{ref.key}": (ref.sha256, "no use") for ref in refs}
    reader = ArtifactStore(root, cache=tmp_path / "cache")
    assert reader.pruned.of(refs[0]) is None
    assert len(store.prune("k", planned)) == 2
    assert store.find("rollouts", "k/000001") is None
    assert store.kinds() in ([], ["rewards", "rollouts"])  # of folders; a bucket has none
    found = reader.pruned.of(refs[0])
    assert found is not None
    assert found.manifest.rows == refs[0].rows
    with pytest.raises(
        PrunedArtifact, match=r"rollouts/k/000001 was pruned on 20\S+: no use\. Its"
    ):
        reader.table(refs[0], "metrics")
    assert store.prune("k", planned) == []
    assert put(store, "rollouts", "k/000001") == refs[0]
    store.verify(refs[0])


def test_what_was_made_again_since_it_was_planned_stays(root: str, tmp_path: Path) -> None:
    store = ArtifactStore(root, cache=tmp_path / "cache")
    ref = put(store, "policy", "k")
    assert store.prune("k", {"policy/k": ("0" * 64, "no use")}) == []
    assert store.find("policy", "k") == ref
    assert store.pruned.below() == {}


def test_a_key_in_work_is_left(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    ref = put(store, "policy", "k")
    with store.hold("k"), pytest.raises(LeaseError, match="k is being made by"):
        ArtifactStore(tmp_path / "store").prune("k", {"policy/k": (ref.sha256, "no use")})
    assert store.find("policy", "k") == ref


def test_leftovers_are_what_has_no_manifest_at_or_above(root: str, tmp_path: Path) -> None:
    """And never a folder that an artifact lies in."""
    store = ArtifactStore(root, cache=tmp_path / "cache")
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "weights").write_text("w")
    put(store, "policy", "k/1", folder)
    put(store, "policy", "k/2", folder)
    assert store.leftovers("policy") == {}
    filesystem, top = fsspec.url_to_fs(root)
    filesystem.rm_file(f"{top}/policy/k/2/manifest.json")
    (place,) = store.leftovers("policy")
    assert place.startswith("policy/k/2")
    assert store.clear("policy", "other") == 0
    assert store.clear("policy", "k") == 1
    assert store.leftovers("policy") == {}
    assert store.keys("policy") == ["k/1"]
