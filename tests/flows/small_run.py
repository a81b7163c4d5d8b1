"""The whole pipeline at its smallest, in a process of its own that a test may kill."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# One process holds learner and engine: the store, the loop and the checkpoints are the real ones,
# and a run takes seconds, so that it can be killed at every step.
INLINE = {
    "hardware.cluster": "in_process",
    "hardware.rollout.engine": "transformers",
    "hardware.rollout.engines": 1,
    "hardware.learner.threads": 1,
}
SMALL = {
    "data.sources.0.train": 64,
    "data.sources.0.validation": 16,
    "data.sources.0.test": 16,
    "data.sources.0.test_steps": 16,
    "data.sources.0.demonstrations": 512,
    "model.from_scratch.hidden_size": 64,
    "model.from_scratch.num_heads": 2,
    "model.from_scratch.num_kv_heads": 1,
    "model.from_scratch.num_layers": 1,
    "sft.batch_size": 16,
    "sft.max_steps": 12,
    "sft.checkpoint_every": 4,
    "rl.iterations": 4,
    "rl.rollout.prompts": 4,
    "rl.rollout.samples": 4,
    "rl.rollout.max_new_tokens": 16,
    "rl.update.optimizer.schedule.warmup_steps": 0,
    "rl.validation.every": 2,
    "rl.validation.prompts": 8,
    "rl.validation.stop_at": None,
    "evaluate.max_prompts": 8,
    "evaluate.samples": 2,
    "evaluate.pass_k": [1, 2],
    "evaluate.max_new_tokens": 16,
    "reward.functions": [{"name": "tests.flows.small_reward:digits"}],
    "tracking.wandb": False,
}


def run_small(
    directory: Path,
    overrides: dict[str, Any] | None = None,
    *,
    recipe: str = "quickstart",
    kill_at: str = "",
    timeout_s: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Run a quickstart recipe, made small, with ``directory`` as working directory.

    ``kill_at`` names a point of ``crash_points``: the process sends itself SIGKILL there.
    """
    arguments = [kill_at, recipe, json.dumps({**SMALL, **(overrides or {})})]
    return run_recipe(directory, arguments, timeout_s=timeout_s)


def run_recipe(
    directory: Path, arguments: list[str], *, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run ``tests.flows.crash_points`` with ``arguments``; kill its whole group after the limit."""
    command = [sys.executable, "-m", "tests.flows.crash_points", *arguments]
    directory.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PREFECT_LOGGING_LEVEL": "INFO",
    }
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"no end within {timeout_s} s:\n{output[-4000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, output, "")


def summary_of(directory: Path) -> dict[str, Any]:
    """Return the summary of the latest run below ``directory``."""
    return json.loads((directory / "runs" / "latest" / "summary.json").read_text())


def artifact_digests(directory: Path, kind: str) -> dict[str, str]:
    """Return key -> content digest of every complete artifact of ``kind``."""
    from rlcore.store import ArtifactStore

    store = ArtifactStore(directory / "runs" / "store")
    return {m.key: m.sha256 for m in store.manifests() if m.kind == kind}


def model_digests(directory: Path, kind: str) -> dict[str, str]:
    """Return key -> sha256 of the weights file of every complete artifact of ``kind``."""
    from rlcore.store import ArtifactStore

    store = ArtifactStore(directory / "runs" / "store")
    return {
        m.key: m.files["model/model.safetensors"].sha256
        for m in store.manifests()
        if m.kind == kind
    }
