"""Lineage over a store: verified, both ways, and what damage or an earlier version hides."""

import json
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.results.lineage import CHANGED, GONE, UNCHANGED, fold, trace
from rlcore.results.metrics import metrics_frame
from rlcore.results.named_artifacts import subject
from rlcore.results.provenance import record_inputs
from rlcore.results.run import record_stage
from rlcore.rewards.registry import code_digests
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.inputs import hub_read, read_file_digest
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from tests.rlcore.results.records import stage_record


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


def test_a_subject_is_found_by_digest_and_the_nearest_is_named(
    store: ArtifactStore, tmp_path: Path
) -> None:
    ref = put(store, "dataset", "d")
    assert subject(ref.sha256[:6], store.root)[1][0].sha256 == ref.sha256
    assert subject(f"{store.root}/dataset/d", "elsewhere")[1][0].sha256 == ref.sha256
    with pytest.raises(UserError, match="did you mean 'dataset/d'"):
        subject("dataset/dd", store.root, tmp_path / "runs")
    with pytest.raises(UserError, match="neither an artifact nor an exported model"):
        subject(str(tmp_path), store.root, tmp_path / "runs")


def read_by(store: ArtifactStore, key: str, *files: Path) -> ArtifactRef:
    """Return a dataset whose stage read ``files``, and one of the hub."""
    reads = {f.name: read_file_digest(str(f), "data") for f in files}
    reads["hub"] = hub_read("owner/rows", "1" * 40, "dataset")
    parents = record_inputs(store, key, reads, Lineage("r", "c", {}))
    return put(store, "dataset", key, **parents)


def test_a_file_that_was_read_is_compared_with_what_it_is_now(
    store: ArtifactStore, tmp_path: Path
) -> None:
    """A digest that is printed as recorded looks as if all were well."""
    files = [tmp_path / name for name in ("same", "edited", "removed")]
    for file in files:
        file.write_text(file.name)
    last = put(store, "policy", "p", d=read_by(store, "d", *files), e=read_by(store, "e", files[0]))
    assert {one["now"] for one in trace(store, [last]).inputs} == {UNCHANGED, "not looked at"}
    files[1].write_text("another")
    files[2].unlink()
    found = trace(store, [last])
    assert [(Path(one["url"]).name, one["now"]) for one in found.inputs] == [
        ("same", UNCHANGED),
        ("edited", CHANGED),
        ("removed", GONE),
        ("rows", "not looked at"),
    ], "each once"
    assert found.moved == found.inputs[1:3]


def test_a_users_function_is_compared_with_its_module_and_what_that_imports(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside_it.py").write_text("PAID = 1.0\n")
    (tmp_path / "lineage_reward.py").write_text("import beside_it\ndef f(): return 1\n")
    reads = code_digests([f"{tmp_path}/lineage_reward.py:f", "lineage_reward:f"])
    assert len(reads) == 2
    parents = record_inputs(store, "k", reads, Lineage("r", "c", {}))
    last = put(store, "policy", "p", **parents)
    assert [one["now"] for one in trace(store, [last]).inputs] == [UNCHANGED] * 2
    (tmp_path / "beside_it.py").write_text("PAID = 2.0\n")
    assert [one["now"] for one in trace(store, [last]).inputs] == [CHANGED] * 2


def test_what_was_made_from_a_file_is_found_by_the_file_and_by_its_digest(
    store: ArtifactStore, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("one")
    digest = sha256(b"one").hexdigest()
    put(store, "policy", "p", d=read_by(store, "d", file))
    for name in (str(file), digest, digest[:8]):
        _, refs = subject(name, store.root, tmp_path / "runs")
        made = trace(store, refs, forward=True)
        assert {node.name for node in made.nodes} == {"inputs/d", "dataset/d", "policy/p"}
    file.write_text("two")
    with pytest.raises(UserError, match=rf"they read it as {digest[:12]}, and it has changed"):
        subject(str(file), store.root, tmp_path / "runs")
    (tmp_path / "other").write_text("three")
    with pytest.raises(UserError, match=r"no run of the store .* read '.*other' as it is, sha256"):
        subject(str(tmp_path / "other"), store.root, tmp_path / "runs")


EDITS: dict[str, Callable[[dict[str, Any]], None]] = {
    "parent": lambda fields: fields["parents"].popitem(),
    "other data": lambda fields: fields["parents"]["from"].update(sha256="0" * 64),
    "producer": lambda fields: fields.update(producer="another run"),
    "recipe": lambda fields: fields.update(recipe_digest="another"),
}


def chain(store: ArtifactStore) -> tuple[list[Path], ArtifactRef]:
    """Return the manifests of artifacts made from each other, and the last one."""
    refs = [put(store, "dataset", "d")]
    for kind in ("sft", "policy", "export"):
        refs.append(put(store, kind, "k", **{"from": refs[-1]}))
    return [Path(ref.uri) / "manifest.json" for ref in refs], refs[-1]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_manifest_is_named(store: ArtifactStore, edit: str) -> None:
    """Its files are whole; it only claims that they were made from other ones."""
    manifests, last = chain(store)
    assert (trace(store, [last]).problems, trace(store, [last]).unsealed) == ([], [])
    for path in manifests:
        before = path.read_text()
        fields = json.loads(before)
        if edit in ("parent", "other data") and not fields["parents"]:
            continue  # the first has none
        EDITS[edit](fields)
        path.write_text(json.dumps(fields))
        named = trace(store, [last]).problems[0]  # behind it, what it claims may be missing
        path.write_text(before)
        assert path == Path(str(store.root), named.name, "manifest.json")
        assert "manifest.json was changed after it was written" in (named.problem or "")
    assert trace(store, [last]).problems == []


def test_a_manifest_without_a_seal_is_not_proven(store: ArtifactStore) -> None:
    """Of an earlier version, or with the seal taken off."""
    manifests, last = chain(store)
    fields = json.loads(manifests[1].read_text()) | {"version": "manifest/v1"}
    del fields["seal"]
    manifests[1].write_text(json.dumps(fields))
    found = trace(store, [last])
    assert found.problems == []
    assert [node.name for node in found.unsealed] == ["sft/k"]


def test_a_run_that_was_killed_in_rl_is_followed_from_its_newest_record(tmp_path: Path) -> None:
    """No policy is there yet: what was drawn for the weights so far is behind iteration 2."""
    name = "quickstart-0123abcd"
    folder = tmp_path / "runs" / name
    folder.mkdir(parents=True)
    recipe = load_recipe("quickstart", {}, directory=RECIPES)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    store = ArtifactStore(tmp_path / "runs" / "store")
    iterations(store, 3)
    record_stage(store, stage_record(name, "rl", kind="policy", key="k"), Lineage("r", "c"))
    reader, (newest,) = subject(name, "elsewhere", tmp_path / "runs")
    assert (newest.kind, newest.key) == ("iterations", "k/000002")
    found = trace(reader, [newest])
    assert found.problems == []
    kinds = Counter(node.ref.kind for node in found.nodes)
    assert kinds == {"iterations": 3, "rollouts": 3, "dataset": 1}
