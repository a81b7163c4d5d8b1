"""``rl-pipeline sql``: an answer that fits the terminal, or is whole."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flows.cli import main
from flows.commands import sql
from rlcore.results.queries import QueryResult, answer
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.table_list import MESSAGES, TABLES, VIEWS

RESPONSE = "Two and two make four.\n" * 40


@pytest.fixture
def store(tmp_path: Path) -> str:
    count = 3
    frame = pl.DataFrame(
        {
            "checkpoint": ["rl"] * count,
            "uid": [f"u{n}" for n in range(count)],
            "data_source": ["arithmetic"] * count,
            "subset": ["test"] * count,
            "mode": ["greedy"] * count,
            "sample": pl.Series([0] * count, dtype=pl.Int32),
            "prompt": ["What is 2 + 2? " * 20] * count,
            "response": [RESPONSE] * count,
            "ground_truth": ["4"] * count,
            "outcome": ["ok"] * count,
            "score": [1.0] * count,
            "answer": pl.Series([None] * count, dtype=pl.String),
            "finish_reason": ["stop"] * count,
            "num_tokens": pl.Series([9] * count, dtype=pl.Int32),
            "verdicts": pl.Series([None] * count, dtype=pl.String),
            "turns": pl.Series([[]] * count, dtype=MESSAGES),
            "valid_actions": pl.Series([[True]] * count, dtype=pl.List(pl.Boolean)),
        }
    )
    tables = {"completions": frame}
    ArtifactStore(tmp_path).put("evaluation", "k", tables=tables, lineage=Lineage("r", "c"))
    return str(tmp_path)


def test_two_completions_are_two_records(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were seventeen columns three characters wide, over ninety lines."""
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["sql", "select * from completions limit 2", "--store", store]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * (1 + 20)
    assert max(map(len, lines)) == 100
    (response, *_) = [line for line in lines if line.startswith("response")]
    assert "Two and two make four." in response
    assert response.endswith("…")


def test_few_columns_are_a_table(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    statement = "select uid, answer, response from completions order by uid"
    assert main(["sql", statement, "--store", store, "--rows", "2"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [["u0", "null"], ["u1", "null"]]
    assert "there are more than these 2 rows; a larger --rows shows more" in printed.err


def test_a_table_fetches_what_it_shows(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All rows of a long run's trajectories are more than a machine's memory."""
    fetched: list[int] = []

    def fetch(*given: Any, **more: Any) -> QueryResult:
        found = answer(*given, **more)
        fetched.append(len(found.rows))
        return found

    monkeypatch.setattr(sql, "answer", fetch)
    for rows in ("0", "1", "3"):
        arguments = ["--store", store, "--rows", rows]
        assert main(["sql", "select uid from completions order by uid", *arguments]) == 0
        assert ("there are more" in capsys.readouterr().err) == (rows != "3")
    assert fetched == [1, 2, 3]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_files_for_other_programs_are_whole(
    form: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--store", store, "--rows", "1", "--format", form]
    assert main(["sql", "select response from completions", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("Two and two make four.") == 3 * 40
    assert printed.err == ""
    if form == "json":
        assert json.loads(printed.out) == [{"response": RESPONSE}] * 3


def test_the_tables_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in (*TABLES, *VIEWS))


def test_the_columns_of_a_table_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "rewards"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "rewards: how each rollout was scored" in printed
    assert "seconds DOUBLE wall clock of scoring, s" in printed


def test_an_unknown_table_ends_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "reward"]) == 2
    assert "did you mean 'rewards'" in capsys.readouterr().err
