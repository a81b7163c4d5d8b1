"""Lineage over a store: verified, both ways, and what damage or an earlier version hides."""

from pathlib import Path

import pytest

from rlcore.results.lineage import fold, mermaid, trace
from rlcore.results.metrics import metrics_frame
from rlcore.results.subject import subject
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError


def put(store: ArtifactStore, kind: str, key: str, **parents: ArtifactRef) -> ArtifactRef:
    table = {"metrics": metrics_frame(f"{kind} {key}", 0, {"x": 1.0})}
    return store.put(kind, key, tables=table, lineage=Lineage("r", "c", parents))


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def iterations(store: ArtifactStore, count: int) -> ArtifactRef:
    record = put(store, "dataset", "d")
    for number in range(count):
        drawn = put(store, "rollouts", f"k/{number:06d}", weights=record)
        record = put(store, "iterations", f"k/{number:06d}", rollouts=drawn, previous=record)
    return record


def test_a_long_run_is_followed_once_by_each_artifact(store: ArtifactStore) -> None:
    last = iterations(store, 60)
    found = trace(store, [last])
    assert len({node.name for node in found.nodes}) == len(found.nodes) == 121
    assert [(len(nodes), name) for nodes, name in fold(found.nodes)] == [
        (60, "k/000000 .. 000059"),
        (60, "k/000000 .. 000059"),
        (1, "d"),
    ]
    assert "iterations (60)" in mermaid(found)
    (first,) = subject("dataset/d", store.root)[1]
    assert len(trace(store, [first], forward=True).nodes) == 121


def test_what_is_gone_or_made_again_is_named_and_a_pruned_checkpoint_is_not(
    store: ArtifactStore,
) -> None:
    checkpoint, dataset = put(store, "checkpoint", "k/000001"), put(store, "dataset", "d")
    last = put(store, "policy", "p", checkpoint=checkpoint, dataset=dataset)
    store.discard("checkpoint", "k/000001")
    assert trace(store, [last]).problems == []
    store.discard("dataset", "d")
    (gone,) = trace(store, [last]).problems
    assert (gone.name, gone.problem) == ("dataset/d", "is missing from the store")
    table = {"metrics": metrics_frame("other", 0, {"x": 2.0})}
    store.put("dataset", "d", tables=table, lineage=Lineage("r", "c"))
    (changed,) = trace(store, [last]).problems
    assert "written again" in (changed.problem or "")


def test_a_store_of_before_says_where_its_chain_ends(store: ArtifactStore) -> None:
    dataset = put(store, "dataset", "d")
    made = Lineage("r", "c", {"dataset": dataset}, metadata={"best_iteration": 4})
    table = {"metrics": metrics_frame("rl", 0, {"x": 1.0})}
    policy = store.put("policy", "p", tables=table, lineage=made)
    notes = {node.name: node.note for node in trace(store, [policy]).nodes}
    assert "earlier version, which recorded no iterations" in (notes["policy/p"] or "")
    assert "earlier version, which recorded no recipe" in (notes["dataset/d"] or "")


def test_a_subject_is_found_by_digest_and_the_nearest_is_named(
    store: ArtifactStore, tmp_path: Path
) -> None:
    ref = put(store, "dataset", "d")
    assert subject(ref.sha256[:6], store.root)[1][0].sha256 == ref.sha256
    assert subject(f"{store.root}/dataset/d", "elsewhere")[1][0].sha256 == ref.sha256
    near = ref.sha256[:7] + ("0" if ref.sha256[7] != "0" else "1")
    with pytest.raises(UserError, match=rf"nearest is '{ref.sha256[:8]}' \(dataset/d\)"):
        subject(near, store.root, tmp_path / "runs")
    with pytest.raises(UserError, match="nearest is 'dataset/d'"):
        subject("dataset/dd", store.root, tmp_path / "runs")
    with pytest.raises(UserError, match="neither an artifact nor an exported model"):
        subject(str(tmp_path), store.root, tmp_path / "runs")
