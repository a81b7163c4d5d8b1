"""The whole pipeline at its smallest, in a process of its own that a test may kill."""

import json
import os
import signal
import socket
import subprocess
import sys
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HANGS_S = 1800.0  # after which a run hangs, also on a machine with much else to do
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
    "rl.update.epochs": 1,
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
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a quickstart recipe, made small, with ``directory`` as working directory.

    ``kill_at`` names a point of ``crash_points``, where the process sends itself SIGKILL.
    ``fresh``: see ``run_recipe``.
    """
    arguments = [kill_at, recipe, json.dumps({**SMALL, **(overrides or {})})]
    return run_recipe(directory, arguments, fresh=fresh)


def run_recipe(
    directory: Path, arguments: list[str], *, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run ``tests.flows.crash_points`` with ``arguments``; kill its whole group when it hangs.

    ``fresh``: in a new interpreter, with its own hash seeds, instead of a fork of one that has
    imported everything.
    """
    directory.mkdir(parents=True, exist_ok=True)
    run = _new_interpreter if fresh else _forked
    return run(directory, arguments)


def environment() -> dict[str, str]:
    """Return the environment of the process that runs the pipeline."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PREFECT_LOGGING_LEVEL": "INFO",
    }


@cache
def load() -> Connection:
    """Start a ``run_server``, which ends when this process does; return the other end of it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.flows.run_server", str(theirs.fileno())]
    subprocess.Popen(command, cwd=ROOT, env=environment(), pass_fds=[theirs.fileno()])
    theirs.close()
    return Connection(ours.detach())


def _forked(directory: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    server, output = load(), directory / "output.txt"
    server.send((str(directory), environment(), str(output), arguments))
    pid = server.recv()
    ended = server.poll(HANGS_S)
    if not ended:
        os.killpg(pid, signal.SIGKILL)
    code, text = server.recv(), output.read_text(errors="replace")
    assert ended, f"no end within {HANGS_S} s:\n{text[-4000:]}"
    return subprocess.CompletedProcess(arguments, code, text, "")


def _new_interpreter(directory: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.flows.crash_points", *arguments]
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=HANGS_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"no end within {HANGS_S} s:\n{output[-4000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, output, "")


def summary_of(directory: Path) -> dict[str, Any]:
    """Return the summary of the latest run below ``directory``."""
    return json.loads((directory / "runs" / "latest" / "summary.json").read_text())


def artifact_digests(directory: Path, kind: str) -> dict[str, str]:
    """Return key -> content digest of every complete artifact of ``kind``."""
    from rlcore.store.artifacts import ArtifactStore

    store = ArtifactStore(directory / "runs" / "store")
    return {m.key: m.sha256 for m in store.manifests() if m.kind == kind}


def model_digests(directory: Path, kind: str) -> dict[str, str]:
    """Return key -> sha256 of the weights file of every complete artifact of ``kind``."""
    from rlcore.store.artifacts import ArtifactStore

    store = ArtifactStore(directory / "runs" / "store")
    return {
        m.key: m.files["model/model.safetensors"].sha256
        for m in store.manifests()
        if m.kind == kind
    }
