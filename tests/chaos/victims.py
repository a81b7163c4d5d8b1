"""Finds the processes of a run by their kind, among those that its worker started."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil

from flows import services
from flows.places import RECIPES
from rlcore.recipes import load_recipe
from rlcore.telemetry import OFF
from rlcore.workers.specs import engine_placement, learner_placement
from tests.flows.small_run import SMALL

ACTORS = ("engine", "learner", "reward")
KILLED = ("server", "worker", "flow", "gcs", "raylet", *ACTORS)
STOPPED = ("stopped-engine", "stopped-learner")  # by SIGSTOP: they are alive and make no progress
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
                return _CHILD in command
            case "environment":
                children = process.children() if _is_actor(command) else []
                return any(_CHILD in child.cmdline() for child in children)
            case _:
                return _is_actor(command) and victim == _kind(process.environ())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _is_actor(command: list[str]) -> bool:
    """Return whether this is the title that Ray gives an actor of ours: ``ray::_Shell``, while it
    has a call ``ray::_Shell.call``."""
    return bool(command) and command[0].split(".")[0] == "ray::_Shell"


def _kind(environment: dict[str, str]) -> str:
    """Return the kind of an actor with this environment.

    Titles do not tell actors apart, and what all processes inherit does not either. A reward worker
    is started with nothing of its own.
    """
    for kind, own in marks().items():
        if own.items() <= environment.items():
            return kind
    return "reward"


@cache
def marks() -> dict[str, dict[str, str]]:
    """Return the variables that only engines, and only learners, are started with on any device."""
    recipe = load_recipe("quickstart", SMALL, directory=RECIPES)
    engine, learner = (
        placement(recipe, "cpu").env.items() & placement(recipe, "cuda").env.items()
        for placement in (engine_placement, learner_placement)
    )
    shared = {name for name, _ in engine} & {name for name, _ in learner} | OFF.keys()
    kinds = {"engine": engine, "learner": learner}
    return {
        kind: {name: value for name, value in own if name not in shared}
        for kind, own in kinds.items()
    }


def shared_weights() -> Iterator[Path]:
    """Yield the files of a sync in /dev/shm."""
    yield from Path("/dev/shm").glob("rl-weights-*")
