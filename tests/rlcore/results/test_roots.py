"""What counts as a root: pins that persist, runs by their records, keys in use."""

from pathlib import Path

import pytest

from rlcore.results.roots import PINS, by_group, find_roots, pin, root_of, runs_of
from rlcore.store.artifacts import ArtifactError, ArtifactStore
from tests.rlcore.results.stores import Filled, put


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    filled = Filled(tmp_path / "store", tmp_path / "files", iterations=1)
    filled.add_run(1)
    return filled


def names(filled: Filled, keep_runs: int = 0) -> list[str]:
    known = {f"{m.kind}/{m.key}": m for m in filled.store.manifests()}
    roots = find_roots(
        filled.store, known, runs_of(filled.store), keep_runs=keep_runs, keep_champions=None
    )
    return [root.name for root in roots]


def test_a_run_names_its_results_and_all_that_it_recorded(filled: Filled) -> None:
    """A checkpoint is no parent of anything, and what a killed run continues from."""
    filled.add_run(2, ended=False)
    newest, oldest = runs_of(filled.store)
    groups = by_group(f"{m.kind}/{m.key}" for m in filled.store.manifests())
    half, done = root_of(newest, groups), root_of(oldest, groups)
    assert "checkpoint/sums02/000001" in half.places
    assert half.resumes == {"sums02"}
    assert {"export/sums01", "policy/sums01", "checkpoint/sums01/000001"} <= done.places
    assert done.resumes == frozenset()
    assert not any("sums02" in place for place in done.places)


def test_a_run_in_work_is_kept_whatever_came_after_it(filled: Filled) -> None:
    with filled.store.hold("sums01"):
        assert names(filled) == ["run sums-00000001", "in use: sums01"]
    assert names(filled) == []


def test_a_pin_follows_what_was_made_again(filled: Filled) -> None:
    store = filled.store
    first = put(store, "dataset", "x")
    pin(store, first)
    assert names(filled) == ["pin dataset/x"]
    store.discard("dataset", "x")
    with pytest.raises(ArtifactError, match="is not in the store"):
        pin(store, first)
    again = put(store, "dataset", "x", other=filled.dataset)
    other = ArtifactStore(store.root)
    pin(other, again)
    found = other.find(PINS, "dataset/x")
    assert found is not None
    assert other.manifest(found).parents["pinned"].sha256 == again.sha256
