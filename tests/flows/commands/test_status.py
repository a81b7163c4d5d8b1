"""What `rl-pipeline status RECIPE` says a run would do is what the run then does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from rlcore.models.base import build_base_model
from rlcore.plan.states import State
from rlcore.results.run import Run
from schemas.model import FromScratch, ModelSection
from schemas.recipe import Recipe
from schemas.stages import Stage, stage_parents
from tests.flows.checkout import Checkout, edited
from tests.flows.small_run import INLINE, SMALL, run_recipe, summary_of

pytestmark = pytest.mark.timeout(600)
AFTER_RL = {"evaluate", "export"}
AFTER_SFT = {"rl"} | AFTER_RL
AFTER_DATA = {"sft"} | AFTER_SFT
AFTER_BASE = {"prepare_data"} | AFTER_DATA
MANIFEST = "manifest.json"
CODE = "code/"  # of a copy, which an edit may change
STATEMENT = "a statement more in each function"
FEW = {
    key: value
    for key, value in {**SMALL, **INLINE, "sft.max_steps": 2, "rl.iterations": 1}.items()
    if not key.startswith(("model.from_scratch", "reward."))
} | {"rl.update.optimizer.schedule.kind": "constant"}


@dataclass(frozen=True)
class Edit:
    """One change since the run: a recipe key's value, or a line more in a file
    (``STATEMENT``: in each function).

    ``runs``: the stages that run for it, with all their causes; ``may_run``: those that run where
    the result of another comes out other than it was; ``continues``: those that continue, with the
    last step that is done.
    """

    where: str
    to: Any
    runs: dict[str, set[str]]
    may_run: set[str]
    continues: dict[str, int] = field(default_factory=dict)

    @property
    def is_line(self) -> bool:
        return "/" in self.where

    @property
    def is_code(self) -> bool:
        return self.where.startswith(CODE)


def unversioned(module: str) -> str:
    return f"{module} changed, and no version was raised"


EDITS = [
    Edit("hardware.learner.threads", 2, {}, set()),
    Edit("rl.checkpoint.keep_last", 3, {}, set()),
    Edit("export.dtype", "bfloat16", {"export": {"export.dtype"}}, set()),
    Edit(  # with which the export no longer reads the base model's
        "export.license", "mit", {"export": {"export.license", "license of the base model"}}, set()
    ),
    Edit("code/tasks/export.py", STATEMENT, {"export": {unversioned("tasks.export")}}, set()),
    Edit("code/tasks/export.py", "# a comment", {}, set()),
    Edit("evaluate.samples", 3, {"evaluate": {"evaluate.samples"}}, {"export"}),
    Edit(
        "code/rlcore/evaluation/summary.py",
        STATEMENT,
        {"evaluate": {unversioned("rlcore.evaluation.summary")}},
        {"export"},
    ),
    Edit(
        "reward.offset",
        0.25,
        {"rl": {"reward.offset"}, "evaluate": {"reward.offset"}},
        {"export"},
    ),
    Edit("rl.update.optimizer.lr", 9e-4, {"rl": {"rl.update.optimizer.lr"}}, AFTER_RL),
    Edit(
        "code/rlcore/rl/update.py", STATEMENT, {"rl": {unversioned("rlcore.rl.update")}}, AFTER_RL
    ),
    Edit("sft.optimizer.lr", 9e-4, {"sft": {"sft.optimizer.lr"}}, AFTER_SFT),
    Edit(
        "code/rlcore/data/filters.py",
        STATEMENT,
        {"prepare_data": {unversioned("rlcore.data.filters")}},
        AFTER_DATA,
    ),
    Edit("data.max_prompt_tokens", 70, {"prepare_data": {"data.max_prompt_tokens"}}, AFTER_DATA),
    Edit("base/README.md", "read by nobody", {"base_model": {"model"}}, AFTER_BASE),
    Edit("rl.iterations", 2, {}, AFTER_RL, {"rl": 1}),
]


@dataclass(frozen=True)
class Finished:
    """A folder with a finished run, its recipe's overrides, its summary, and a copy of the code."""

    folder: Path
    overrides: dict[str, Any]
    summary: dict[str, Any]

    def status(self, edit: Edit, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
        """Return what ``status`` prints; of a change of code in a process that has read it."""
        if edit.is_code:
            return self._command("status")
        assert main(["status", *settings(self.overrides)]) == 0
        return json.loads(capsys.readouterr().out)

    def run(self, edit: Edit) -> dict[str, Any]:
        """Run the recipe; return the summary."""
        if edit.is_code:
            return self._command("run")
        words = ["", "quickstart", json.dumps(self.overrides)]
        done = run_recipe(self.folder, words)
        assert done.returncode == 0, done.stdout[-3000:]
        return summary_of(self.folder)

    def _command(self, *words: str) -> Any:
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
    Checkout(folder / CODE)
    shape = FromScratch(hidden_size=64, num_heads=2, num_kv_heads=1, num_layers=1)
    model = ModelSection(from_scratch=shape, dtype="float32")
    build_base_model(model, folder / "base", texts=["What is 3 + 4? #### 7"], seed=0)
    overrides = {**FEW, "model.from_scratch": None, "model.path": str(folder / "base")}
    done = run_recipe(folder, ["", "quickstart", json.dumps(overrides)])
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
        more = f"{before or ''}\n{edit.to}\n"
        path.write_text(edited(before or "") if edit.to == STATEMENT else more)
        return finished

    yield apply
    for path, text in changed.items():
        path.unlink() if text is None else path.write_text(text)


def parents_of(summary: dict[str, Any], stage: str, recipe: Recipe) -> dict[str, str]:
    """Return the digests of what a stage of that run read, by role."""
    return {
        role: json.loads((Path(summary["artifacts"][parent]) / MANIFEST).read_text())["sha256"]
        for role, parent in stage_parents(recipe)[Stage(stage)].items()
    }


def check_done(said: dict[str, str], work: Finished, after: dict[str, Any]) -> None:
    """Compare what a run did with each stage with the states that ``status`` had ``said``."""
    done, cached = Run.open("latest", work.folder / "runs"), set(after["cached"])
    began = work.summary["artifacts"]
    assert set(said) == set(after["artifacts"])
    for stage, state in said.items():
        record, made = done.stages[stage], after["artifacts"][stage]
        assert record.cached == (stage in cached)
        if state == State.CACHED:
            assert stage in cached, stage
            assert made == began[stage], stage
        elif state == State.MAY_RUN:
            read = [parents_of(run, stage, done.recipe) for run in (work.summary, after)]
            assert (stage in cached) == (read[0] == read[1]), stage
        else:
            assert stage not in cached, stage
            assert made != began[stage], stage
        went_on = record.records_key != record.result_key
        assert went_on == (state == State.CONTINUES), stage


def test_there_are_fifteen_edits_and_one_that_continues() -> None:
    assert len([edit for edit in EDITS if not edit.continues]) == 15
    assert len(EDITS) == 16


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.where}: {edit.to}")
def test_an_edit_is_named_with_its_stages_and_the_run_does_exactly_that(
    edit: Edit,
    applied: Callable[[Edit], Finished],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A cause that is named wrongly, or not, costs a training run to find out."""
    work = applied(edit)
    rows = work.status(edit, capsys)
    states = {row["stage"]: row["state"] for row in rows}
    causes = {row["stage"]: {cause["name"] for cause in row["causes"]} for row in rows}
    steps = {row["stage"]: row["step"] for row in rows if row["step"] is not None}
    assert {stage: named for stage, named in causes.items() if named} == edit.runs
    assert {stage for stage, state in states.items() if state == State.RUNS} == set(edit.runs)
    assert {stage for stage, state in states.items() if state == State.MAY_RUN} == edit.may_run
    assert steps == edit.continues
    rest = set(states) - set(edit.runs) - edit.may_run - set(edit.continues)
    assert {states[stage] for stage in rest} <= {State.CACHED}

    check_done(states, work, work.run(edit))
    assert {row["state"] for row in work.status(edit, capsys)} == {State.CACHED}


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
