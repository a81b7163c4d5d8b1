"""``rl-pipeline runs``: what was run, with its state, also where no server is up."""

import json
import os
from pathlib import Path

import pytest

from flows import local
from flows.cli import main
from flows.commands.runs import run_rows
from schemas.errors import UserError


def make_run(runs: Path, name: str, *, began: float, accuracy: float | None = None) -> None:
    folder = runs / name
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text("name: quickstart\n")
    os.utime(folder / "recipe.yaml", (began, began))
    if accuracy is not None:
        summary = {"iterations": 40, "accuracy": {"rl": accuracy}, "export": "runs/store/x"}
        (folder / "summary.json").write_text(json.dumps(summary))
        os.utime(folder / "summary.json", (began + 60, began + 60))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs, a link to the newer one, and the store beside them."""
    make_run(tmp_path, "quickstart-11111111", began=1e9, accuracy=0.75)
    make_run(tmp_path, "my-own-22222222", began=2e9)
    (tmp_path / "latest").symlink_to("my-own-22222222")
    (tmp_path / "store").mkdir()
    return tmp_path


def test_a_row_per_run_the_newest_first(runs: Path) -> None:
    unfinished, completed = run_rows(runs)
    assert unfinished["run"] == "my-own-22222222"
    assert unfinished["state"] == "unfinished"
    assert unfinished["export"] is None
    assert completed["state"] == "completed"
    assert (completed["iterations"], completed["accuracy"]) == (40, 0.75)
    assert completed["export"] == "runs/store/x"
    assert completed["ended"] > completed["began"]


def test_no_server_is_needed(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.setattr(local, "HOME", runs / ".prefect")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["runs", "--runs", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:4] == ["my-own-22222222", "unfinished", "-", "-"]
    assert lines[3].split()[:4] == ["quickstart-11111111", "completed", "40", "0.75"]
    assert lines[4] == "Newest export: runs/store/x"


def test_a_folder_that_is_not_there_ends_in_a_sentence(runs: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        run_rows(runs / "nowhere")


def test_watching_without_a_server_ends_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Starting one here would show an empty history instead of the run that is looked for."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(local, "HOME", tmp_path / "home")
    assert main(["watch"]) == 2
    said = capsys.readouterr().err.strip()
    assert said == "error: no Prefect server of this project is running; `make up` starts it"
    assert not (tmp_path / "home").exists()
