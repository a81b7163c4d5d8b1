"""Every JSON that a command prints is what its schema in docs/schemas says."""

import argparse
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from flows import local, study
from flows.cli import create_parser, main
from flows.outcomes import RunOutcome
from flows.output import FORMATS
from flows.paths import ROOT
from rlcore.results.metrics import metrics_frame, publish_metrics
from rlcore.store.artifacts import ArtifactStore, Lineage
from tests.conftest import HOME
from tests.flows.commands.test_data import arguments as few_rows

SCHEMAS = ROOT / "docs" / "schemas"
ARGUMENTS = {  # a command with what makes it print rows -> further arguments, its exit code
    "algorithms": (["--for", "reasoning"], 0),
    "ask": ([], 0),
    "data quickstart": (few_rows(), 0),
    "doctor": ([], None),  # what this machine lacks is no matter here
    "lineage": (["metrics/k/m"], 0),
    "recipes": ([], 0),
    "reward try arithmetic quickstart": (["-n", "4", *few_rows()], 0),
    "runs": ([], 0),
    "sql": (["select * from metrics"], 0),
    "store usage": ([], 0),
    "status": ([], 1),  # server without worker
    "status quickstart": ([], 0),
    "study quickstart": ([], 0),
    "tables": ([], 0),
    "tables rewards": ([], 0),
}
OUTCOMES = [RunOutcome("quickstart", seed, 0.5, 0.75, 20, 31.5, []) for seed in (0, 1, 2)]


def _printing() -> set[str]:
    """Return the commands that take ``--format``, or an action of which does."""
    return {name for name, parser in _commands(create_parser()) if _takes_format(parser)}


def _commands(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    return [
        found
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for found in action.choices.items()
    ]


def _takes_format(parser: argparse.ArgumentParser) -> bool:
    return any(action.dest == "format" for action in parser._actions) or any(
        _takes_format(inner) for _, inner in _commands(parser)
    )


def _trained(*arguments: object) -> list[RunOutcome]:
    """Stand for runs of a deployment, which take minutes; they print as they go."""
    del arguments
    print("1/3 quickstart seed 0")
    return OUTCOMES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run that ended, one that did not, and a store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "HOME", HOME)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(study, "train_all", _trained)
    summary = {"iterations": 4, "accuracy": {"base": 0.0, "sft": 0.5, "rl": 1.0}, "export": "x"}
    for name, done in (("quickstart-0123abcd", True), ("quickstart-4567abcd", False)):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "recipe.yaml").write_text(yaml.safe_dump({"name": "quickstart"}))
        if done:
            (run / "summary.json").write_text(json.dumps(summary))
    frame = metrics_frame("rl", 1, {"loss": 1.0, "none": float("nan")})
    publish_metrics(ArtifactStore(tmp_path / "runs" / "store"), "k", "m", frame, Lineage("r", "c"))
    return tmp_path


def test_every_command_that_prints_json_has_a_schema() -> None:
    named = {path.name.removesuffix(".schema.json") for path in SCHEMAS.iterdir()}
    # printed by the test files of these commands
    elsewhere = {"champions", "compare", "evaluate", "evolve", "fork", "rerun", "run"}
    assert named == _printing() == {command.split()[0] for command in ARGUMENTS} | elsewhere


@pytest.mark.parametrize("command", ARGUMENTS)
def test_what_is_printed_is_what_the_schema_says(
    command: str, folder: Path, prefect_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del folder, prefect_server
    arguments, expected = ARGUMENTS[command]
    code = main([*command.split(), *arguments, "--format", "json"])
    assert expected is None or code == expected
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert rows
    schema = json.loads((SCHEMAS / f"{command.split()[0]}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(rows, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("command", [command for command in ARGUMENTS if command != "lineage"])
def test_table_and_csv_hold_the_same_rows(
    command: str, folder: Path, prefect_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del folder, prefect_server
    arguments, _ = ARGUMENTS[command]
    counts = {}
    for form in FORMATS:
        main([*command.split(), *arguments, "--format", form])
        counts[form] = capsys.readouterr().out
    rows = json.loads(counts["json"])
    assert counts["csv"].partition("\n")[0] == ",".join(rows[0])
    first = str(next(iter(rows[0].values())))
    assert first in counts["csv"]
    assert first in counts["table"]
