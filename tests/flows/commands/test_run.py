"""`rl-pipeline run` ends in a table or in one sentence, whatever Prefect has to say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from flows.cli import main
from tests.flows.small_run import INLINE, ROOT, SMALL

pytestmark = pytest.mark.timeout(240)
SCHEMA = ROOT / "docs" / "schemas" / "run.schema.json"
FEW = {**SMALL, **INLINE, "sft.enabled": False, "rl.iterations": 1, "evaluate.samples": 1}


def run(folder: Path, overrides: dict, *options: str) -> subprocess.CompletedProcess[str]:
    words = [word for k, v in overrides.items() for word in ("-o", f"{k}={json.dumps(v)}")]
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", "run", "quickstart", *words, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def check_summary(summary: dict) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(summary, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.slow
def test_a_failed_run_prints_one_sentence_and_no_traceback(
    prefect_server: str, tmp_path: Path
) -> None:
    """Here of engine and learner that differ by more than they may, which RL finds."""
    done = run(tmp_path, {**FEW, "rl.max_logprob_gap": 1e-12, "evaluate.pass_k": [1]})
    assert done.returncode == 1
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert "Traceback" not in done.stdout + done.stderr
    assert len(lines) < 12, lines
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("error: sampler and learner log-probs differ"), done.stderr
    assert not list((tmp_path / "runs/store").glob("policy/*"))


def test_the_summary_is_not_asked_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "quickstart", "--dry-run", "--format", "json"]) == 2
    assert "leave it out, or --dry-run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_ends_in_its_table_and_export(prefect_server: str, tmp_path: Path) -> None:
    verifies = {"reward.functions": [{"name": "arithmetic"}]}  # else there is no accuracy
    done = run(tmp_path, {**FEW, **verifies, "evaluate.pass_k": [1]})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held-out greedy accuracy" in done.stdout
    lines = dict(re.findall(r"^(\w+): (.+)$", done.stdout, re.MULTILINE))
    exported = lines["Export"]
    assert (Path(exported) / "model.safetensors").is_file()
    check_summary(json.loads(Path(lines["Summary"]).read_text(encoding="utf-8")))
    noise = ("Finished in state", "nanobind", "Loading weights", "Writing model shards")
    assert not [words for words in noise if words in done.stdout + done.stderr]
    again = run(tmp_path, {**FEW, **verifies, "evaluate.pass_k": [1]}, "--format", "json")
    assert again.returncode == 0, again.stderr
    summary = json.loads(again.stdout)
    check_summary(summary)
    assert (summary["export"], len(summary["cached"])) == (exported, 5)
