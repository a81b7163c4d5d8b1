"""A stage continues from its newest whole checkpoint, and keeps the ones it was told to keep."""

from pathlib import Path
from typing import Any, cast

import pytest

from rlcore.learner.checkpoints import Checkpoints
from rlcore.learner.pool import LearnerFuture, LearnerPool
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage

LINEAGE = Lineage(recipe_digest="r", code_fingerprint="c")


class State:
    """What a learner holds: one number."""

    def __init__(self, value: int) -> None:
        self.value = value

    def save(self, directory: str | Path) -> LearnerFuture[None]:
        Path(directory).mkdir(parents=True)
        (Path(directory) / "value").write_text(str(self.value))
        return LearnerFuture(lambda: None)

    def load(self, directory: str) -> None:
        self.value = int((Path(directory) / "value").read_text())


def learners(**values: int) -> dict[str, Any]:
    return {role: cast(LearnerPool, State(value)) for role, value in values.items()}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


@pytest.fixture
def checkpoints(store: ArtifactStore) -> Checkpoints:
    return Checkpoints(store, "run", LINEAGE)


def test_every_learner_goes_back_to_its_own_state(checkpoints: Checkpoints) -> None:
    """Actor and critic exchanged would train on, with nothing to show it."""
    checkpoints.begin(3, learners(actor=1, critic=2), {})()
    later = learners(actor=7, critic=8)
    checkpoints.load(checkpoints.at(3), later)
    assert {role: state.value for role, state in later.items()} == {"actor": 1, "critic": 2}


def test_the_newest_counts_by_number_and_brings_its_metadata(
    checkpoints: Checkpoints, store: ArtifactStore
) -> None:
    for step in (10, 999_999, 1_000_000, 9):
        checkpoints.begin(step, learners(actor=step), {"step": step})()
    assert checkpoints.steps() == [9, 10, 999_999, 1_000_000]
    ref = checkpoints.newest(print)
    assert ref is not None
    assert store.manifest(ref).metadata == {"step": 1_000_000}


def test_a_damaged_one_is_said_and_the_one_before_it_is_used(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    for step in (1, 2):
        checkpoints.begin(step, learners(actor=step), {})()
    (tmp_path / "checkpoint" / "run" / "000002" / "actor" / "value").write_text("harmed")
    said: list[str] = []
    assert checkpoints.newest(said.append) == checkpoints.at(1)
    assert "000002/actor/value" in said[0]
    assert checkpoints.steps() == [1]


def test_only_what_is_to_be_kept_stays(checkpoints: Checkpoints, store: ArtifactStore) -> None:
    other = Checkpoints(store, "run2", LINEAGE)
    other.begin(1, learners(actor=1), {})()
    for step in range(1, 5):
        checkpoints.begin(step, learners(actor=step), {})()
    checkpoints.keep({2, 4, 77})
    assert (checkpoints.steps(), other.steps()) == ([2, 4], [1])


def test_one_that_is_gone_is_named(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest(print) is None
    with pytest.raises(ArtifactError, match=r"checkpoint run/000007 is missing from the store; re"):
        checkpoints.at(7)
