"""``rl-pipeline tables``: what to ask for, before the first run."""

import pytest

from flows.cli import main
from schemas.table_list import TABLES, VIEWS


def test_it_lists_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in (*TABLES, *VIEWS))


def test_it_describes_the_columns_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "rewards"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "rewards: how each rollout was scored" in printed
    assert "seconds DOUBLE wall clock of scoring, s" in printed


def test_an_unknown_table_ends_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "reward"]) == 2
    assert "did you mean 'rewards'" in capsys.readouterr().err
