"""Processes that are timed: TRL's environment, and the memory of a process with all below it."""

import json
import os
import subprocess
import sys
import threading
import venv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from flows.paths import ROOT
from schemas.errors import UserError

HERE = Path(__file__).parent
TRL = ROOT / ".venv-trl"
LOOK_S = 2.0  # between two looks at the memory, each of which holds up what is looked at
LIMIT_S = 7200.0  # after which a process hangs
STEP = "STEP "  # begins the lines that report


@dataclass(frozen=True, slots=True)
class Timed:
    """The steps that a process reported, as JSON, and the most memory that it held with all below
    it, in bytes (proportional set size: shared pages count once)."""

    steps: list[dict[str, Any]]
    peak_bytes: int


def trl_python() -> str:
    """Return the interpreter of TRL's environment, ``.venv-trl``, made where it is missing with the
    pins of ``trl.txt``. Raises UserError where they cannot be installed."""
    python, pins = TRL / "bin" / "python", HERE / "trl.txt"
    done = TRL / "installed.txt"
    if not done.is_file() or done.read_text() != pins.read_text():
        venv.create(TRL, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--requirement", pins]
        if subprocess.run(install, check=False).returncode:
            raise UserError(
                f"TRL cannot be installed in {TRL} with the pins of {pins}; see pip's words above"
            )
        done.write_text(pins.read_text())
    return str(python)


def importing(environment: Mapping[str, str]) -> dict[str, str]:
    """Return this process's variables and ``environment``, with this repository on PYTHONPATH
    unless it says otherwise, so that programs started anywhere find the rewards of ``tests``."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **environment}


def timed(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Timed:
    """Run ``command`` to its end; return what it reported on lines that begin with ``STEP``.

    Raises UserError where it fails, with its last words.
    """
    with subprocess.Popen(
        command,
        env=importing(environment or {}),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        watch = MemoryWatch([process.pid])
        limit = threading.Timer(LIMIT_S, process.kill)
        limit.start()
        assert process.stdout is not None, "it is a pipe"
        lines = process.stdout.readlines()
        process.wait()
        limit.cancel()
        peak = watch.end()
    if process.returncode:
        raise UserError(f"{' '.join(command)[:200]} ended with {process.returncode}: {lines[-20:]}")
    steps = [json.loads(line.removeprefix(STEP)) for line in lines if line.startswith(STEP)]
    return Timed(steps, peak)


def report(seconds: float, metrics: Mapping[str, float]) -> None:
    """Say what ``timed`` reads: how long a step took, and its ``metrics``."""
    phases = {
        name.removeprefix("timing_s/"): round(value, 4)
        for name, value in metrics.items()
        if name.startswith("timing_s/")
    }
    said = {"seconds": seconds, "tokens": metrics["perf/response_tokens"], "phases": phases}
    print(STEP + json.dumps(said), flush=True)


def report_tokens(seconds: float, tokens: int) -> None:
    """Say how long a step on so many tokens took."""
    print(STEP + json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)


def ours(
    module: str, job: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> Timed:
    """Run ``module`` of this project on ``job``, with further variables in its ``environment``."""
    return timed([sys.executable, "-m", module, json.dumps(job)], environment)


def by_trl(script: str, job: Mapping[str, Any]) -> Timed:
    """Run ``script`` of this folder on ``job`` in TRL's environment."""
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    return timed([trl_python(), str(HERE / script), json.dumps(job)], offline)


class MemoryWatch:
    """Looks at processes, and all that they start, until ``end``."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._roots = pids
        self._peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> int:
        """Stop looking; return the most bytes that were held at once."""
        self._over.set()
        self._thread.join()
        return self._peak

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            self._peak = max(self._peak, sum(_held(pid) for pid in self._roots))


def _held(root: int) -> int:
    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(root)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += each.memory_full_info().pss
    return total
