"""What `rl-pipeline status RECIPE` says a run would do is what the run then does."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from rlcore.models.base import build_base_model
from schemas.recipe import FromScratch, ModelSection
from tests.flows.small_run import INLINE, ROOT, SMALL

pytestmark = pytest.mark.timeout(1500)
AFTER_RL = {"evaluate", "export"}
AFTER_SFT = {"rl"} | AFTER_RL
AFTER_DATA = {"sft"} | AFTER_SFT
AFTER_BASE = {"prepare_data"} | AFTER_DATA
FEW = {
    key: value
    for key, value in {**SMALL, **INLINE, "sft.max_steps": 2, "rl.iterations": 1}.items()
    if not key.startswith(("model.from_scratch", "reward."))
}


@dataclass
class Work:
    """A copy of the code, a base model and the overrides so far, each of which an edit changes."""

    folder: Path
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> Path:
        return self.folder / "code"

    def command(self, *words: str) -> Any:
        """Return what a command of the copied code prints as JSON."""
        settings = [f"{key}={json.dumps(value)}" for key, value in self.overrides.items()]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "flows.cli", *words, "quickstart", "--format", "json"),
                *(word for setting in settings for word in ("-o", setting)),
            ],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.code), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)


def setting(path: str, value: Any) -> Callable[[Work], None]:
    return lambda work: work.overrides.update({path: value})


def append(name: str, line: str) -> Callable[[Work], None]:
    def edit(work: Work) -> None:
        with (work.folder / name).open("a") as file:
            file.write(f"\n{line}\n")

    return edit


# Edit -> the stages that run, with all their causes; the stages that run if those come out anew.
EDITS: list[tuple[Callable[[Work], None], dict[str, set[str]], set[str]]] = [
    (setting("hardware.learner.threads", 2), {}, set()),
    (setting("rl.checkpoint.keep_last", 3), {}, set()),
    (setting("export.dtype", "bfloat16"), {"export": {"export.dtype"}}, set()),
    (  # which makes that of the base model no input any more
        setting("export.license", "mit"),
        {"export": {"export.license", "license of the base model"}},
        set(),
    ),
    (append("code/tasks/export.py", "EDITED = 1"), {"export": {"tasks.export"}}, set()),
    (append("code/tasks/export.py", "# a comment"), {}, set()),
    (setting("evaluate.samples", 3), {"evaluate": {"evaluate.samples"}}, {"export"}),
    (
        append("code/rlcore/evaluation/statistics.py", "EDITED = 1"),
        {"evaluate": {"rlcore.evaluation.statistics"}},
        {"export"},
    ),
    (
        setting("reward.offset", 0.25),
        {"rl": {"reward.offset"}, "evaluate": {"reward.offset"}},
        {"export"},
    ),
    (
        setting("rl.update.optimizer.lr", 9e-4),
        {"rl": {"rl.update.optimizer.lr"}},
        AFTER_RL,
    ),
    (append("code/rlcore/rl/update.py", "EDITED = 1"), {"rl": {"rlcore.rl.update"}}, AFTER_RL),
    (setting("sft.optimizer.lr", 9e-4), {"sft": {"sft.optimizer.lr"}}, AFTER_SFT),
    (
        append("code/rlcore/data/filters.py", "EDITED = 1"),
        {"prepare_data": {"rlcore.data.filters"}},
        AFTER_DATA,
    ),
    (
        setting("data.max_prompt_tokens", 70),
        {"prepare_data": {"data.max_prompt_tokens"}},
        AFTER_DATA,
    ),
    (append("base/README.md", "read by nobody"), {"base_model": {"model"}}, AFTER_BASE),
]


def parents_of(summary: dict[str, Any], stage: str) -> dict[str, str]:
    manifest = json.loads((Path(summary["artifacts"][stage]) / "manifest.json").read_text())
    return {role: ref["sha256"] for role, ref in manifest["parents"].items()}


@pytest.mark.slow
def test_fifteen_edits_run_what_status_says_and_nothing_else(
    prefect_server: str, tmp_path: Path
) -> None:
    """A cause that is named wrongly, or not, costs a training run to find out."""
    for package in ("flows", "tasks", "rlcore", "schemas"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / "code" / package, ignore=ignored)
    shape = FromScratch(hidden_size=64, num_heads=2, num_kv_heads=1, num_layers=1)
    model = ModelSection(from_scratch=shape, dtype="float32")
    build_base_model(model, tmp_path / "base", texts=["What is 3 + 4? #### 7"], seed=0)
    base = {"model.from_scratch": None, "model.path": str(tmp_path / "base")}
    work = Work(tmp_path, {**FEW, **base})
    assert {row["state"] for row in work.command("status")} == {"runs"}
    before = work.command("run")
    assert before["cached"] == []
    for number, (edit, runs, may_run) in enumerate(EDITS):
        edit(work)
        rows = {row["stage"]: row for row in work.command("status")}
        named = {s: {c["name"] for c in row["causes"]} for s, row in rows.items() if row["causes"]}
        assert named == runs, number
        assert {s for s, row in rows.items() if row["state"] == "may run"} == may_run, number
        after = work.command("run")
        ran = set(rows) - set(after["cached"])
        assert set(runs) <= ran <= set(runs) | may_run, number
        for stage in may_run:
            same = parents_of(before, stage) == parents_of(after, stage)
            assert same == (stage in after["cached"]), (number, stage)
        before = after
    assert len(EDITS) == 15


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
