"""Finds the processes of a run by their kind, among those that its worker started."""

from collections.abc import Iterator
from pathlib import Path

import psutil

from flows import services
from rlcore.engines.registry import ENGINES
from rlcore.rl.workers import ENVIRONMENT_WORKER, LEARNER, REWARD_WORKER

# The kinds of actors, each with what its processes may run, as "module:Class".
ACTORS = {
    "engine": tuple(kind.target for kind in ENGINES.values()),
    "learner": (LEARNER,),
    "reward": (REWARD_WORKER,),
    "environment": (ENVIRONMENT_WORKER,),
}
KILLED = ("server", "worker", "flow", "gcs", "raylet", "engine", "learner", "reward")
# By SIGSTOP: they are alive and make no progress.
STOPPED = ("stopped-engine", "stopped-learner", "stopped-gcs", "stopped-raylet")
SHOP = Path(__file__).parent / "shop.py"  # the MCP server of episodes
_CHILD = "rlcore.envs.child"


def find(home: Path, victim: str) -> psutil.Process:
    """Return one process of the current run. Raises LookupError when there is none."""
    victim = victim.removeprefix("stopped-")
    if victim in ("server", "worker"):
        service = services.find(home, victim)
        if service is None:
            raise LookupError(f"no {victim} runs")
        return psutil.Process(service.pid)
    for process in below_worker(home):
        if is_victim(process, victim):
            return process
    raise LookupError(f"the run has no {victim}")


def below_worker(home: Path) -> list[psutil.Process]:
    """Return all that the worker started, at any depth."""
    worker = services.find(home, "worker")
    return psutil.Process(worker.pid).children(recursive=True) if worker else []


def is_victim(process: psutil.Process, victim: str) -> bool:
    """Return whether a running process is of the kind ``victim``."""
    try:
        command = process.cmdline()
        match victim:
            case "flow":
                return "prefect.flow_engine" in command or "prefect.engine" in command
            case "gcs":
                return process.name().startswith("gcs_server")
            case "raylet":
                return process.name() == "raylet"
            case "mcp":
                return command[-1:] == [str(SHOP)]
            case "environment-process":
                # Not the one that watches it, which serves nothing.
                watcher = process.parent()
                return _CHILD in command and watcher is not None and _CHILD in watcher.cmdline()
            case _:
                return bool(command) and _class_of(command[0]) in _classes(ACTORS[victim])
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _class_of(title: str) -> str:
    """Return the class that an actor runs, by the title that Ray gives it: ``ray::Learner``, while
    it has a call ``ray::Learner.call``. Other titles are those of no class."""
    return title.removeprefix("ray::").split(".")[0] if title.startswith("ray::") else ""


def _classes(targets: tuple[str, ...]) -> set[str]:
    return {target.rpartition(":")[2] for target in targets}


def shared_weights() -> Iterator[Path]:
    """Yield the files of a sync in /dev/shm, also those that are half written."""
    yield from Path("/dev/shm").glob("*rl-weights-*")
