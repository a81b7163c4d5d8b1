"""Kills or stops every process of a deployed run, on Ray and vLLM, at random points.

Exit code 1 if a kill lost anything, was not named in time, or left a process behind.

python -m tests.chaos [pipeline | episodes | episodes-gepo] [--victims engine learner ...]
                      [--points 3] [--seed 0]

All in a separate bring-up. A rerun continues what was killed and is killed in turn; the policy of a
run that survives, else of the last rerun, must equal that of a run that was never killed.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from flows import local
from rlcore.store.artifacts import ArtifactStore
from tests.chaos import jobs, victims
from tests.chaos.jobs import Job
from tests.flows.small_run import ROOT

JOBS = {
    "pipeline": jobs.pipeline,
    "episodes": jobs.episodes,
    "episodes-gepo": jobs.episodes_gepo,
}
NAMED_S = 15.0  # until the terminal shows it
STOPPED_S = 60.0  # the same for a process that is stopped, not killed
STATE_S = 150.0  # until the run's state does
GONE_S = 90.0  # until no process of the run is left; agents of Ray look once a minute
RUN_S = 600.0
# What a terminal must show for each, besides that the run did not complete.
CAUSES = {
    "server": "The Prefect server does not answer",
    "worker": "The worker ended",
    "flow": "exited with non-zero status code -9",
    "gcs": "Ray's gcs_server (process ",
    "raylet": "Ray's raylet (process ",
    "engine": "worker 'rollout-engine-",
    "learner": "worker 'learner-0' ",
    "reward": "worker 'reward-0' ",
    "environment": "worker 'environment-0' ",
    "stopped-engine": "worker 'rollout-engine-",
    "stopped-learner": "worker 'learner-0' ",
}


@dataclass
class Terminal:
    """A user's terminal, with the time of each line."""

    process: "subprocess.Popen[bytes]"
    path: Path

    def text(self) -> str:
        """Return what it has shown so far."""
        return self.path.read_text(errors="replace")

    def wait_for(self, words: str, limit_s: float) -> float | None:
        """Return the seconds until it shows ``words``, or None."""
        return _until(lambda: words in self.text(), limit_s)


@dataclass
class Kill:
    """One kill and its outcome."""

    victim: str
    point: int  # how far runs had come, by ``Job.reached``
    faults: list[str] = field(default_factory=list)
    named_s: float | None = None  # seconds until the terminal named it
    state: str = ""
    survived: bool = False  # the run did
    family: list[psutil.Process] = field(default_factory=list)  # the processes of the run
    terminal: Path = Path()


def _until(done: Callable[[], bool], limit_s: float) -> float | None:
    """Return the seconds until ``done()``, or None after ``limit_s``."""
    begun = time.monotonic()
    while time.monotonic() - begun < limit_s:
        if done():
            return time.monotonic() - begun
        time.sleep(0.2)
    return None


class Site:
    """A bring-up below ``folder``, for runs of ``job``."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.job = job
        self.folder, self.home = folder, folder / "home"
        self.untouched = folder / "untouched"  # the store of a run that was not killed
        self.terminals = self.stores = 0

    def up(self) -> None:
        """Start what is not running."""
        local.up(self.home, env_file=self.home / ".env")

    def new_store(self) -> Path:
        """Return a store with the results of the stages before RL."""
        self.stores += 1
        store = self.folder / f"store-{self.stores}"
        for manifest in ArtifactStore(self.untouched).manifests():
            if manifest.kind in ("base_model", "dataset") or "steps" in manifest.metadata:
                place = Path(manifest.kind) / manifest.key
                shutil.copytree(self.untouched / place, store / place)
        return store

    def terminal(self, store: Path) -> Terminal:
        """Bring everything up, start a run, follow it."""
        self.terminals += 1
        path = self.folder / f"terminal-{self.terminals}.txt"
        overrides = {**self.job.overrides, "store": str(store)}
        command = [sys.executable, "-m", "tests.chaos.terminal", str(self.home), self.job.recipe]
        with path.open("wb") as output:
            process = subprocess.Popen(
                [*command, json.dumps(overrides)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Terminal(process, path)

    def complete(self, store: Path) -> str:
        """Run to the end and return the digest of the policy. Raises AssertionError if it fails."""
        terminal = self.terminal(store)
        code = terminal.process.wait(RUN_S)
        assert code == 0, f"the run ended with {code}:\n{terminal.text()[-3000:]}"
        return digest(store)


def digest(store: Path) -> str:
    """Return the sha256 of the exported weights."""
    (manifest,) = [m for m in ArtifactStore(store).manifests() if m.kind == "export"]
    return manifest.files["model/model.safetensors"].sha256


def ordeal(
    site: Site, victim: str, kills_wanted: int, rng: random.Random, expected: str
) -> Iterator[Kill]:
    """Kill ``victim`` in run after run, each of which continues the one before; yield each kill.

    A run that survives is complete, and the next kill is of a new one. The last kill is reported
    once there are weights to compare.
    """
    kills: list[Kill] = []
    store = site.new_store()
    for _ in range(kills_wanted):
        kills.append(kill(site, store, victim, rng))
        if kills[-1].survived:
            _compare(kills[-1], digest(store), expected)
            store = site.new_store()
    try:
        if not kills[-1].survived:
            _compare(kills[-1], site.complete(store), expected)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        kills[-1].faults.append(str(error))
    for done in kills:
        if _until(lambda done=done: not _living(done.family), GONE_S) is None:
            done.faults.append(f"still there: {_living(done.family)}")
        if shared := [str(path) for path in victims.shared_weights()]:
            done.faults.append(f"left in memory: {', '.join(shared)}")
        yield done


def kill(site: Site, store: Path, victim: str, rng: random.Random) -> Kill:
    """Let a run go on for a while, kill the victim, and check what is reported."""
    job = site.job
    done = Kill(victim, job.reached(store) + rng.choice(job.points))
    terminal = site.terminal(store)
    stopped = done.victim in victims.STOPPED
    try:
        ended = terminal.process.poll
        _until(lambda: job.reached(store) >= done.point or ended() is not None, RUN_S)
        assert job.reached(store) >= done.point, f"not at {done.point}:\n{terminal.text()[-3000:]}"
        time.sleep(rng.uniform(0, 0.5))
        done.family = victims.below_worker(site.home)
        target = victims.find(site.home, done.victim)
        os.kill(target.pid, signal.SIGSTOP if stopped else signal.SIGKILL)
        if victim not in job.survived:
            limit_s = STOPPED_S if stopped else NAMED_S
            done.named_s = terminal.wait_for(CAUSES[done.victim], limit_s)
            if done.named_s is None and terminal.process.poll() != 0:
                done.faults.append(f"the terminal did not name it within {limit_s:.0f} s")
        if done.victim == "server":
            site.up()
        if _until(lambda: terminal.process.poll() is not None, RUN_S) is None:
            done.faults.append("the terminal did not come back")
        seconds, done.state = _final_state(STATE_S)
        done.survived = done.state.startswith("Completed")
        if seconds is None:
            done.faults.append(f"no final state within {STATE_S:.0f} s")
        elif not done.survived and CAUSES.get(victim, "") not in done.state:
            done.faults.append("the state does not name the cause")
        if victim in job.survived and not done.survived:
            done.faults.append("the run did not survive it")
        site.up()
    except (AssertionError, LookupError) as error:
        done.faults.append(str(error))
    finally:
        if terminal.process.poll() is None:
            os.killpg(terminal.process.pid, signal.SIGKILL)
    done.terminal = terminal.path
    return done


def _compare(done: Kill, found: str, expected: str) -> None:
    if found != expected:
        done.faults.append(f"other weights: {found[:12]}, not {expected[:12]}")


def _final_state(limit_s: float) -> tuple[float | None, str]:
    """Return the seconds until the newest pipeline run has ended, and its state with message."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName
    from prefect.client.schemas.sorting import FlowRunSort

    state: Any = None

    def final() -> bool:
        nonlocal state
        with get_client(sync_client=True) as client:
            (run,) = client.read_flow_runs(
                flow_filter=FlowFilter(name=FlowFilterName(any_=["rl-pipeline"])),
                sort=FlowRunSort.EXPECTED_START_TIME_DESC,
                limit=1,
            )
        state = run.state
        return state is not None and state.is_final()

    seconds = _until(final, limit_s)
    return seconds, f"{state.name}: {state.message}"


def _living(family: list[psutil.Process]) -> list[str]:
    """Return the processes of a run that are still running."""
    found = []
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.name()}")
    return found


@contextlib.contextmanager
def bring_up(folder: Path, job: Job) -> Iterator[Site]:
    """Yield a site that ends with the context, and everything that it started."""
    site = Site(folder, job)
    os.environ["PYTHONPATH"] = str(ROOT)
    site.up()
    try:
        yield site
    finally:
        local.down(site.home)


def main() -> int:
    """Kill, report, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("job", nargs="?", choices=JOBS, default="pipeline")
    parser.add_argument("--victims", nargs="+", help="default: all of the job")
    parser.add_argument("--points", type=int, default=3, help="kills of each; stopped: one")
    parser.add_argument("--seed", type=int, default=0, help="of the points")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="rl-chaos-"))
    job = JOBS[options.job](folder)
    if unknown := set(options.victims or ()) - set(job.victims):
        parser.error(f"{options.job} has no {', '.join(unknown)}; it has {', '.join(job.victims)}")
    kills: list[Kill] = []
    with bring_up(folder, job) as site:
        expected = site.complete(site.untouched)
        print(f"untouched: {expected[:12]}", flush=True)
        for victim in options.victims or job.victims:
            points = 1 if victim in victims.STOPPED else options.points
            for done in ordeal(site, victim, points, rng, expected):
                kills.append(done)
                _print(done)
    faulty = [done for done in kills if done.faults]
    print(f"{len(kills) - len(faulty)} of {len(kills)} kills lost nothing and were named in time")
    if not faulty:
        shutil.rmtree(folder)
    return 1 if faulty else 0


def _print(done: Kill) -> None:
    named = "" if done.named_s is None else f", named after {done.named_s:.1f} s"
    state = done.state.partition("\n")[0][:200]
    verdict = "; ".join([*done.faults, f"see {done.terminal}"] if done.faults else ["ok"])
    print(f"{done.victim} at {done.point}{named}: {verdict} ({state})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
