"""Finds the processes of a run by their kind, among those that its worker started."""

from collections.abc import Iterator
from pathlib import Path

import psutil

from flows import services

# What distinguishes an actor: variables that only its kind is started with.
ACTORS = {
    "engine": lambda env: "VLLM_NO_USAGE_STATS" in env,
    "learner": lambda env: "DS_ACCELERATOR" in env,
    "reward": lambda env: "VLLM_NO_USAGE_STATS" not in env and "DS_ACCELERATOR" not in env,
}
KILLED = ("server", "worker", "flow", "gcs", "raylet", *ACTORS)
STOPPED = ("stopped-engine", "stopped-learner")  # by SIGSTOP: they are alive and make no progress


def find(home: Path, victim: str) -> psutil.Process:
    """Return one process of the current run. Raises LookupError when there is none."""
    victim = victim.removeprefix("stopped-")
    if victim in ("server", "worker"):
        service = services.find(home, victim)
        if service is None:
            raise LookupError(f"no {victim} runs")
        return psutil.Process(service.pid)
    for process in below_worker(home):
        if _is(process, victim):
            return process
    raise LookupError(f"the run has no {victim}")


def below_worker(home: Path) -> list[psutil.Process]:
    """Return all that the worker started, at any depth."""
    worker = services.find(home, "worker")
    return psutil.Process(worker.pid).children(recursive=True) if worker else []


def _is(process: psutil.Process, victim: str) -> bool:
    try:
        command = process.cmdline()
        match victim:
            case "flow":
                return "prefect.flow_engine" in command or "prefect.engine" in command
            case "gcs":
                return process.name().startswith("gcs_server")
            case "raylet":
                return process.name() == "raylet"
            case _:
                return "ray::_Shell" in " ".join(command) and ACTORS[victim](process.environ())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def shared_weights() -> Iterator[Path]:
    """Yield the files of a sync in /dev/shm."""
    yield from Path("/dev/shm").glob("rl-weights-*")
