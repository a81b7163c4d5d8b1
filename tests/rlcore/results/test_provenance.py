"""Which recipe, code and outside files a result came from, as artifacts."""

import json
import subprocess
from pathlib import Path

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe, recipe_digest
from rlcore.recipes.text import read_yaml
from rlcore.results.lineage import trace
from rlcore.results.provenance import code_state, record_code, record_inputs, record_recipe
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.inputs import read_file_digest

MADE = Lineage("r", "c0de")


def test_the_recipes_text_is_kept_by_its_digest(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    recipe = load_recipe("quickstart", {"seed": 7}, directory=RECIPES)
    ref = record_recipe(store, recipe, MADE)
    assert ref.key == recipe_digest(recipe)
    text = (store.directory(ref) / "recipe.yaml").read_text()
    assert read_yaml(text, "recipe") == recipe.model_dump(mode="json")
    iterations = recipe.rl.iterations
    about = {"name": "quickstart", "seed": 7, "iterations": iterations}
    assert store.manifest(ref).metadata == {**about, "trust_remote_code": False}


def test_code_that_a_model_brings_is_recorded_with_every_recipe(tmp_path: Path) -> None:
    """Everything that a run makes has its recipe among its parents."""
    store = ArtifactStore(tmp_path / "store")
    changes = {"model.from_scratch": None, "model.path": "a/b", "model.trust_remote_code": True}
    recipe = load_recipe("quickstart", changes, directory=RECIPES)
    ref = record_recipe(store, recipe, MADE)
    assert store.manifest(ref).metadata["trust_remote_code"] is True
    (found,) = trace(store, [ref]).recipes
    assert found["trust_remote_code"] is True


def test_code_names_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    """A digest alone leads nobody to the code; an environment inside a repository is not ours."""
    checkout = tmp_path / "checkout"
    (checkout / "rlcore").mkdir(parents=True)
    (checkout / "rlcore" / "a.py").write_text("a = 1\n")
    git = ["git", "-C", str(checkout), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "A"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    state = code_state(checkout)
    assert (state["commit"], state["dirty"]) == (head.stdout.strip(), False)
    (checkout / "rlcore" / "a.py").write_text("a = 2\n")
    code_state.cache_clear()
    assert code_state(checkout)["dirty"] is True
    assert code_state(checkout / "rlcore")["dirty"] is None
    store = ArtifactStore(tmp_path / "store")
    recorded = store.directory(record_code(store, MADE)) / "code.json"
    assert json.loads(recorded.read_text())["fingerprint"] == "c0de"


def test_inputs_name_each_file_and_follow_another_place(tmp_path: Path) -> None:
    """What a killed attempt read from another place is not what this one read."""
    store = ArtifactStore(tmp_path / "store")
    (tmp_path / "a.jsonl").write_text("{}\n")
    (tmp_path / "b.jsonl").write_text("{}\n")
    refs = [
        record_inputs(
            store, "k", {"data.sources[0]": read_file_digest(str(tmp_path / name), "data")}, MADE
        )["inputs"]
        for name in ("a.jsonl", "b.jsonl")
    ]
    (row,) = store.table(refs[1], "inputs").to_dicts()
    assert row["source"] == "data.sources[0]"
    assert row["url"] == str(tmp_path / "b.jsonl")
    assert len(row["digest"]) == 64
    assert record_inputs(store, "other", {"role": "plain text"}, MADE) == {}


def test_a_recipe_that_was_damaged_is_written_again(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    recipe = load_recipe("quickstart", directory=RECIPES)
    ref = record_recipe(store, recipe, MADE)
    path = store.directory(ref) / "recipe.yaml"
    whole = path.read_bytes()
    path.write_bytes(b"x" + whole[1:])
    assert record_recipe(store, recipe, MADE) == ref
    assert path.read_bytes() == whole
