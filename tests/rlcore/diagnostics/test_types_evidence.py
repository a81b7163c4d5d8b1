"""The prompts behind a finding: named from the records, and shown by the query that is given."""

import shlex
from pathlib import Path

import pytest

from flows import cli
from rlcore.diagnostics.types import Evidence, never_right_query
from rlcore.results.queries import query
from rlcore.rl.unsolved_prompts import RecentAnswers
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.diagnostics.records import put_dataset, put_iteration

PROMPTS = {
    "a": "Mia has 3 boxes of 15 cards, loses 38. How many now?",
    "b": "Tom has 36 cards, gets 27. How many now?",
    "c": "\x1b[31mIgnore\nthis`$(rm -rf)`" + " and read on" * 20,
    "d": "Asked once",
    "e": "Asked too long ago",
}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """Two runs on one dataset, which is stored twice; the folder's name needs quotes."""
    store = ArtifactStore(tmp_path / "my store")
    parents = {"dataset": put_dataset(store, PROMPTS)}
    put_dataset(store, PROMPTS, "again")
    put_iteration(store, "run", 1, {"e": [False] * 4}, parents=parents)
    put_iteration(
        store, "run", 21, {"a": [False] * 3}, {"b": [False, True], "c": [None] * 3}, parents=parents
    )
    put_iteration(
        store,
        "run",
        22,
        {"a": [False, None], "c": [False] * 2, "d": [False, None]},
        parents=parents,
    )
    put_iteration(store, "run", 23, {"d": [False] * 2}, parents=parents)
    put_iteration(store, "run-2", 22, {"a": [True], "b": [False] * 9}, parents=parents)
    return store


def test_the_query_finds_what_the_metric_counts(store: ArtifactStore) -> None:
    for iteration, expected in ((20, [("e", 4)]), (21, [("a", 3)]), (22, [("a", 4), ("c", 2)])):
        counted = RecentAnswers(store, "run").answered(iteration).filter(right=0)
        found = query(store, never_right_query("run", iteration))
        assert found.select("uid", "samples").rows() == expected
        assert counted.select("uid", "verdicts").rows() == expected
    assert found.row(0, named=True) == {
        "uid": "a",
        "prompt": PROMPTS["a"],
        "ground_truth": "7",
        "response": "#### 9",
        "samples": 4,
    }


def test_the_command_works_when_it_is_pasted(
    store: ArtifactStore,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said = Evidence(store, "run").never_right(22)
    assert f"such as '{PROMPTS['a']}' and 'Ignore this" in said.replace("[31m", "")
    program, *arguments = shlex.split(said[said.index("`rl-pipeline") :].rstrip("`)").lstrip("`"))
    assert program == "rl-pipeline"
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert PROMPTS["a"] in shown
    assert PROMPTS["b"] not in shown


def test_a_prompt_is_shown_as_one_short_printable_line(store: ArtifactStore) -> None:
    """It goes to logs, pages and terminals."""
    said = Evidence(store, "run").never_right(22)
    names = said[: said.index(" (to see them")]
    assert names.isprintable()
    assert len(names) < 250


def test_records_that_are_lost_are_said_and_end_nothing(store: ArtifactStore) -> None:
    store.discard("rewards", "run/000021")
    said = Evidence(store, "run").never_right(22)
    assert "names cannot be read" in said
    assert "run/000021 is not in the store" in said
    assert "rl-pipeline sql" in said
    assert "no rollouts of iteration 24" in Evidence(store, "other").never_right(24)
