"""``rl-pipeline compare``: tables, Markdown, JSON, and exit code 3 when a run is surely worse."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flows.cli import main
from flows.commands.compare import WORSE
from flows.paths import ROOT
from tests.rlcore.results.evaluated import completions, make_run

FIRST, SECOND = "a-00000001", "a-00000002"
RIGHT = {f"u{n}": n % 10 > 0 for n in range(200)}
WRONG = {f"u{n}": n % 10 > 2 for n in range(220)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: 90 % of 200 prompts are right, and 70 % of them and 20 others."""
    runs = tmp_path_factory.mktemp("compared") / "runs"
    curves = {"rl": {1: {"critic/score/mean": 0.5}}}
    make_run(runs, FIRST, {"seed": 1}, evaluation=completions(RIGHT), curves=curves)
    make_run(runs, SECOND, {"seed": 2}, evaluation=completions(WRONG), curves=curves)
    return runs


def _compare(runs: Path, *arguments: str) -> int:
    return main(["compare", FIRST, SECOND, "--runs", str(runs), *arguments])


def test_tables_for_people(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _compare(runs) == 0
    shown = capsys.readouterr().out
    titles = [line for line in shown.splitlines() if line.endswith(":")]
    assert titles == [
        "What differs:",
        "Training:",
        "Evaluation of 'rl': a-00000002 against a-00000001, on the prompts of both:",
    ]
    assert "seed" in shown
    assert "-0.2" in shown


def test_a_run_that_is_surely_worse_ends_in_3(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _compare(runs, "--fail-if", "accuracy < -0.01") == WORSE == 3
    assert capsys.readouterr().err.startswith(
        "failed: accuracy < -0.01: accuracy of a-00000002 is 0.7, that of a-00000001 0.9;"
        " difference -0.2 on 200 prompts, 95 % interval [-0.2"
    )
    conditions = ["--fail-if", "accuracy < -0.5", "--fail-if", "length > 1"]
    assert _compare(runs, *conditions) == 0
    assert main(["compare", SECOND, FIRST, "--runs", str(runs), "--fail-if", "accuracy<0"]) == 0


def test_json_and_csv_hold_the_same_rows(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = ["--fail-if", "accuracy < -0.01"]
    assert _compare(runs, "--format", "json", *failing) == WORSE
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    schema = json.loads((ROOT / "docs" / "schemas" / "compare.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(rows, schema, cls=jsonschema.Draft202012Validator)
    accuracy = next(r for r in rows if (r["part"], r["name"]) == ("evaluation", "accuracy"))
    assert accuracy["value"] == pytest.approx(-0.2)
    counted = ("pairs", "unmatched_first", "unmatched_this")
    assert [accuracy[key] for key in counted] == [200, 0, 20]
    assert accuracy["lower"] - accuracy["higher"] == 40, "of the discordant pairs"
    assert [row["part"] for row in rows][-1] == "failed"
    assert _compare(runs, "--format", "csv", *failing) == WORSE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ",".join(rows[0])
    assert len(lines) == len(rows) + 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fail-if", "acuracy < 0"], "did you mean 'accuracy'?"),
        (["--fail-if", "accuracy"], "is no condition; write METRIC < NUMBER"),
        (["--fail-if", "sampled_accuracy < 0"], "cannot be compared"),
    ],
)
def test_wrong_input_ends_in_a_sentence(
    runs: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _compare(runs, *arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([FIRST, "a-00000003"], "there is no run 'a-00000003'"),
        ([FIRST, FIRST], "two or more different runs can be compared"),
        ([FIRST], "two or more different runs can be compared"),
    ],
)
def test_wrong_runs_end_in_a_sentence(
    runs: Path, names: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *names, "--runs", str(runs)]) == 2
    assert said in capsys.readouterr().err
