"""What `rl-pipeline status RECIPE` says a run would do is what the run then does."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from rlcore.models.base import build_base_model
from schemas.model import FromScratch, ModelSection
from tests.flows.small_run import INLINE, ROOT, SMALL, run_recipe, summary_of

pytestmark = pytest.mark.timeout(600)
AFTER_RL = {"evaluate", "export"}
AFTER_SFT = {"rl"} | AFTER_RL
AFTER_DATA = {"sft"} | AFTER_SFT
AFTER_BASE = {"prepare_data"} | AFTER_DATA
CODE = "code/"  # of a copy, which an edit may change
FEW = {
    key: value
    for key, value in {**SMALL, **INLINE, "sft.max_steps": 2, "rl.iterations": 1}.items()
    if not key.startswith(("model.from_scratch", "reward."))
}


@dataclass(frozen=True)
class Edit:
    """One change since the run: a recipe key's value, or a line more in a file.

    ``runs``: the stages that run for it, with all their causes; ``may_run``: those that run where
    the result of one of ``runs`` comes out other than it was.
    """

    where: str
    to: Any
    runs: dict[str, set[str]]
    may_run: set[str]

    @property
    def is_line(self) -> bool:
        return "/" in self.where


EDITS = [
    Edit("hardware.learner.threads", 2, {}, set()),
    Edit("rl.checkpoint.keep_last", 3, {}, set()),
    Edit("export.dtype", "bfloat16", {"export": {"export.dtype"}}, set()),
    Edit(  # with which the export no longer reads the base model's
        "export.license", "mit", {"export": {"export.license", "license of the base model"}}, set()
    ),
    Edit("code/tasks/export.py", "EDITED = 1", {"export": {"tasks.export"}}, set()),
    Edit("code/tasks/export.py", "# a comment", {}, set()),
    Edit("evaluate.samples", 3, {"evaluate": {"evaluate.samples"}}, {"export"}),
    Edit(
        "code/rlcore/evaluation/statistics.py",
        "EDITED = 1",
        {"evaluate": {"rlcore.evaluation.statistics"}},
        {"export"},
    ),
    Edit(
        "reward.offset",
        0.25,
        {"rl": {"reward.offset"}, "evaluate": {"reward.offset"}},
        {"export"},
    ),
    Edit("rl.update.optimizer.lr", 9e-4, {"rl": {"rl.update.optimizer.lr"}}, AFTER_RL),
    Edit("code/rlcore/rl/update.py", "EDITED = 1", {"rl": {"rlcore.rl.update"}}, AFTER_RL),
    Edit("sft.optimizer.lr", 9e-4, {"sft": {"sft.optimizer.lr"}}, AFTER_SFT),
    Edit(
        "code/rlcore/data/filters.py",
        "EDITED = 1",
        {"prepare_data": {"rlcore.data.filters"}},
        AFTER_DATA,
    ),
    Edit("data.max_prompt_tokens", 70, {"prepare_data": {"data.max_prompt_tokens"}}, AFTER_DATA),
    Edit("base/README.md", "read by nobody", {"base_model": {"model"}}, AFTER_BASE),
]


@dataclass(frozen=True)
class Finished:
    """A folder with a finished run, its recipe's overrides, its summary, and a copy of the code."""

    folder: Path
    overrides: dict[str, Any]
    summary: dict[str, Any]

    def command(self, *words: str) -> Any:
        """Return what a command of the copied code prints as JSON."""
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *words, *settings(self.overrides)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder / CODE), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)


def settings(overrides: dict[str, Any]) -> list[str]:
    values = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    return ["quickstart", "--format", "json", *(word for v in values for word in ("-o", v))]


@pytest.fixture(scope="module")
def finished(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("status")
    for package in ("flows", "tasks", "rlcore", "schemas"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / CODE / package, ignore=ignored)
    shape = FromScratch(hidden_size=64, num_heads=2, num_kv_heads=1, num_layers=1)
    model = ModelSection(from_scratch=shape, dtype="float32")
    build_base_model(model, folder / "base", texts=["What is 3 + 4? #### 7"], seed=0)
    overrides = {**FEW, "model.from_scratch": None, "model.path": str(folder / "base")}
    done = run_recipe(folder, ["", "quickstart", json.dumps(overrides)], timeout_s=300)
    assert done.returncode == 0, done.stdout[-3000:]
    return Finished(folder, overrides, summary_of(folder))


@pytest.fixture
def applied(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Edit], Finished]]:
    """What makes an edit, for the length of a test, and returns the run with its overrides."""
    monkeypatch.chdir(finished.folder)
    changed: dict[Path, str | None] = {}

    def apply(edit: Edit) -> Finished:
        if not edit.is_line:
            return replace(finished, overrides={**finished.overrides, edit.where: edit.to})
        path = finished.folder / edit.where
        before = changed[path] = path.read_text() if path.exists() else None
        path.write_text(f"{before or ''}\n{edit.to}\n")
        return finished

    yield apply
    for path, text in changed.items():
        path.unlink() if text is None else path.write_text(text)


def parents_of(summary: dict[str, Any], stage: str) -> dict[str, str]:
    manifest = json.loads((Path(summary["artifacts"][stage]) / "manifest.json").read_text())
    return {role: ref["sha256"] for role, ref in manifest["parents"].items()}


def test_there_are_fifteen_edits() -> None:
    assert len(EDITS) == 15


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.where}: {edit.to}")
def test_an_edit_is_named_with_its_stages_and_nothing_else(
    edit: Edit,
    applied: Callable[[Edit], Finished],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A cause that is named wrongly, or not, costs a training run to find out."""
    work = applied(edit)
    if edit.where.startswith(CODE):
        rows = work.command("status")
    else:
        assert main(["status", *settings(work.overrides)]) == 0
        rows = json.loads(capsys.readouterr().out)
    states = {row["stage"]: row["state"] for row in rows}
    causes = {row["stage"]: {cause["name"] for cause in row["causes"]} for row in rows}
    assert {stage: named for stage, named in causes.items() if named} == edit.runs
    assert {stage for stage, state in states.items() if state == "runs"} == set(edit.runs)
    assert {stage for stage, state in states.items() if state == "may run"} == edit.may_run
    rest = set(states) - set(edit.runs) - edit.may_run
    assert {states[stage] for stage in rest} <= {"cached"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    ["rl.checkpoint.keep_last", "export.dtype", "rl.update.optimizer.lr", "code/tasks/export.py"],
)
def test_a_run_does_what_status_says(where: str, applied: Callable[[Edit], Finished]) -> None:
    edit = next(edit for edit in EDITS if edit.where == where)
    work = applied(edit)
    if where.startswith(CODE):
        after = work.command("run")
    else:
        words = ["", "quickstart", json.dumps(work.overrides)]
        done = run_recipe(work.folder, words, timeout_s=300)
        assert done.returncode == 0, done.stdout[-3000:]
        after = summary_of(work.folder)
    assert set(after["cached"]) <= set(after["artifacts"])
    ran = set(after["artifacts"]) - set(after["cached"])
    assert set(edit.runs) <= ran <= set(edit.runs) | edit.may_run
    for stage in edit.may_run:
        same = parents_of(work.summary, stage) == parents_of(after, stage)
        assert same == (stage in after["cached"]), stage


def test_a_recipe_that_lacks_a_stage_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "quickstart", "--dry-run", "--refresh", "reward_model"]) == 2
    assert main(["run", "quickstart", "--dry-run", "--until", "evalaute"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "as reward_model = null; it has base_model, prepare_data" in errors[0]
    assert "did you mean 'evaluate'" in errors[1]


def test_options_of_a_recipe_without_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "-o", "seed=1"]) == 2
    assert "name it: rl-pipeline status RECIPE" in capsys.readouterr().err
