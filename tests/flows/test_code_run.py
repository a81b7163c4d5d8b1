"""Whole runs whose reward executes programs, killed while one is in the sandbox, and refused where
there is no sandbox."""

import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.cli import main
from rlcore.results.queries import query
from rlcore.sandbox.probe import find_sandbox
from rlcore.store.artifacts import ArtifactStore
from tests.flows.crash_points import PROCESSES
from tests.flows.small_run import INLINE, SMALL, artifact_digests, model_digests, run_recipe

# Enough SFT for responses that hold a program, right or wrong.
CODE: dict[str, Any] = {
    **{key: value for key, value in SMALL.items() if key != "data.sources.0.test_steps"},
    **INLINE,
    "data.sources.0.demonstrations": 6400,
    "data.sources.0.malformed": 0.0,
    "sft.batch_size": 32,
    "sft.max_steps": 200,
    "sft.checkpoint_every": 200,
    "sft.optimizer.lr": 4.0e-3,
    "sft.optimizer.schedule.warmup_steps": 10,
    "rl.iterations": 3,
    "rl.rollout.max_new_tokens": 32,
    "evaluate.max_new_tokens": 32,
    # The second keeps weights moving where all programs of a group are wrong.
    "reward.functions": [
        {"name": "code", "options": {"memory_mib": 256}},
        {"name": "tests.flows.small_reward:digits"},
    ],
}


def test_the_plan_of_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "code-quickstart", "--dry-run", "-o", f"store={tmp_path}/store"]) == 0
    said = capsys.readouterr().out
    assert "4,096 training prompts, 256 test prompts, 23,040 demonstrations" in said


def test_the_recipe_is_refused_where_no_sandbox_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before SFT, which would take a minute."""

    monkeypatch.setenv("PATH", "/nowhere")  # no bubblewrap, and a kernel that takes no filter
    monkeypatch.setattr("rlcore.sandbox.levels.filter_code", lambda may_exec: b"\0" * 8)
    find_sandbox.cache_clear()
    try:
        code = main(["run", "code-quickstart", "--dry-run", "-o", f"store={tmp_path}/store"])
    finally:
        find_sandbox.cache_clear()
    assert code == 2
    said = capsys.readouterr().err
    assert "no level of sandbox holds on this machine" in said
    assert "install the package bubblewrap" in said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_killed_while_a_program_is_in_the_sandbox(
    prefect_server: str, tmp_path: Path
) -> None:
    """The rerun has the weights of an uninterrupted run, and no process is left of the first."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    given = json.dumps(CODE)
    run = run_recipe(killed, ["in-the-sandbox", "code-quickstart", given])
    assert run.returncode == -signal.SIGKILL, run.stdout[-4000:]
    pids = json.loads((killed / PROCESSES).read_text())
    assert len(pids) > 2, "child of the reward worker, its watcher, the sandbox"
    left = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(left, timeout=300)
    assert not alive
    for directory in (killed, whole):
        run = run_recipe(directory, ["", "code-quickstart", given])
        assert run.returncode == 0, run.stdout[-4000:]
    assert model_digests(killed, "policy") == model_digests(whole, "policy")
    assert len(set(model_digests(whole, "policy").values())) == 2, "SFT and RL"
    for kind in ("rollouts", "advantages"):
        assert artifact_digests(killed, kind) == artifact_digests(whole, kind)
    store = ArtifactStore(whole / "runs" / "store")
    ran = query(store, "select detail from rewards where correct or detail like '%test 1 of 2%'")
    assert ran.height > 0, "no program was run"
