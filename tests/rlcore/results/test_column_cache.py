"""Small columns of many files in one: the same answers, and nothing believed that changed."""

import shutil
from pathlib import Path

import pytest

from rlcore.results import column_cache
from rlcore.results.queries import query
from rlcore.store import file_stamps
from rlcore.store.artifacts import ArtifactStore, DamagedArtifact
from tests.rlcore.results.test_index import flip
from tests.rlcore.results.test_queries import run

STATEMENTS = (
    "select key, outcome, score, kind, records_key from rewards order by all",
    "select key, trajectory_id, iteration, score, kind from trajectories order by all",
    "select key, count(*), count(parts), max(response) from trajectories group by all order by all",
    "select r.key, w.score from rollouts r join rewards w using (key, trajectory_id) order by all",
    "select count(*), count(distinct t.key) from rewards, trajectories t",
    "select t.key, t.correct, advantages is null from trajectories t order by all",
    "select count(seed), count(positive), count(own_logprobs) from trajectories",
    "from rewards order by all",
)
SCORES = "select key, any_value(score) as score from rewards group by key order by key"


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every file as settled, and three as many."""
    monkeypatch.setattr(file_stamps, "SETTLED_S", 0.0)
    monkeypatch.setattr(column_cache, "LEAST_FILES", 3)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    store = ArtifactStore(tmp_path / "o'brien's store")
    for number in range(4):
        run(store, f"run{number}", float(number))
    return store


def held_files(store: ArtifactStore) -> list[Path]:
    return sorted((Path(store.root) / ".index").glob("rows_*"))


def scores(store: ArtifactStore) -> list[float]:
    return query(store, SCORES)["score"].to_list()


def test_answers_are_those_of_the_files(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [query(store, statement) for statement in STATEMENTS]
    assert [path.name.partition("-")[0] for path in held_files(store)] == [
        *("rows_advantages", "rows_rewards", "rows_rollouts")
    ]
    again = [query(store, statement) for statement in STATEMENTS]
    monkeypatch.setattr(column_cache, "LEAST_FILES", 100)
    for statement, one, two in zip(STATEMENTS, first, again, strict=True):
        files = query(store, statement)
        assert files.height
        assert one.equals(files), statement
        assert two.equals(files), statement


def test_a_damaged_file_is_named_though_its_rows_are_held(store: ArtifactStore) -> None:
    assert scores(store) == [0, 1, 2, 3]
    path = Path(store.root) / "rewards" / "run1" / "000000" / "rewards.parquet"
    flip(path, keep_times=True)
    with pytest.raises(DamagedArtifact, match=r"run1/000000/rewards\.parquet was changed"):
        scores(store)


def test_what_was_added_replaced_or_removed_shows_at_once(store: ArtifactStore) -> None:
    assert scores(store) == [0, 1, 2, 3]
    (before,) = held_files(store)
    run(store, "run4", 4.0)
    assert scores(store) == [0, 1, 2, 3, 4]
    assert held_files(store) == [before], "a fifth is read from its file"
    for kind in ("rollouts", "rewards", "advantages", "update"):
        store.discard(kind, "run0/000000")
    store.discard("dataset", "run0")
    run(store, "run0", 7.0)
    assert scores(store) == [7, 1, 2, 3, 4]
    assert held_files(store) != [before], "and two of five make it worth a new one"
    store.discard("rewards", "run2/000000")
    assert scores(store) == [7, 1, 3, 4]


@pytest.mark.parametrize("damage", ["changed", "gone", "folder a file"])
def test_one_that_cannot_be_read_is_made_again(store: ArtifactStore, damage: str) -> None:
    assert scores(store) == [0, 1, 2, 3]
    (path,) = held_files(store)
    match damage:
        case "changed":
            flip(path, keep_times=True)
        case "gone":
            path.unlink()
        case _:
            shutil.rmtree(path.parent)
            path.parent.write_text("")
    assert scores(store) == [0, 1, 2, 3]
    if damage != "folder a file":
        assert len(held_files(store)) == 1


def test_a_file_that_changed_while_it_was_copied_is_not_held(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new rows would stand under the digest of the old ones."""
    unchanged = iter([True] * 4 + [False])
    monkeypatch.setattr(column_cache.Index, "is_unchanged", lambda *_: next(unchanged))
    assert scores(store) == [0, 1, 2, 3]
    assert held_files(store) == []
