"""A bring-up of its own, and runs of a job in it that are dealt blows while they continue.

A run takes one blow after another for as long as it outlives them. One that has ended is started
again on the same store, and continues from what is there. The policy of the run that completes must
equal that of a run that nobody touched.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from flows import local
from rlcore.store.artifacts import ArtifactStore
from tests.chaos import jobs, victims
from tests.chaos.blows import DEPLOYED, Blow
from tests.chaos.jobs import Job
from tests.chaos.watching import Family, until
from tests.flows.small_run import ROOT

NAMED_S = 15.0  # until the terminal shows it
STOPPED_S = 60.0  # the same for a process that is stopped, not killed
STATE_S = 150.0  # until the run's state does
GONE_S = 90.0  # until no process of the run is left; agents of Ray look once a minute
RUN_S = 900.0
# What a terminal must show for each.
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
}


@dataclass
class Terminal:
    """A user's terminal that follows a run."""

    process: "subprocess.Popen[bytes]"
    path: Path

    def text(self) -> str:
        """Return what it has shown so far."""
        return self.path.read_text(errors="replace")

    def ended(self) -> bool:
        """Return whether it has come back."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """End it, if it has not come back."""
        if not self.ended():
            os.killpg(self.process.pid, signal.SIGKILL)


class Site:
    """A bring-up below ``folder``, for runs of ``job``."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.job = job
        self.folder, self.home = folder, folder / "home"
        self.untouched = folder / "untouched"  # the store of a run that nobody touched
        self.expected, self.seconds = "", 0.0  # its digest; its seconds from the first rollouts on
        self._terminals = self._stores = 0

    def up(self) -> None:
        """Start what is not running."""
        local.up(self.home, env_file=self.home / ".env")

    def new_store(self) -> Path:
        """Return a store with the results of the stages before RL."""
        self._stores += 1
        store = self.folder / f"store-{self._stores}"
        for manifest in ArtifactStore(self.untouched).manifests():
            if manifest.kind in ("base_model", "dataset") or "steps" in manifest.metadata:
                place = Path(manifest.kind) / manifest.key
                shutil.copytree(self.untouched / place, store / place)
        return store

    def terminal(self, store: Path) -> Terminal:
        """Bring everything up, start a run, follow it."""
        self._terminals += 1
        path = self.folder / f"terminal-{self._terminals}.txt"
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

    def undisturbed(self) -> None:
        """Make the run that the others are compared with. Raises AssertionError if it fails."""
        terminal = self.terminal(self.untouched)
        until(lambda: jobs.rollouts(self.untouched) > 0 or terminal.ended(), RUN_S)
        began = time.monotonic()
        code = terminal.process.wait(RUN_S)
        assert code == 0, f"the run ended with {code}:\n{terminal.text()[-3000:]}"
        self.expected, self.seconds = digest(self.untouched), time.monotonic() - began

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the current run."""
        return victims.below_worker(self.home)


def digest(store: Path) -> str:
    """Return the sha256 of the exported weights. Raises AssertionError where there are none."""
    found = [m for m in ArtifactStore(store).manifests() if m.kind == "export"]
    assert len(found) == 1, f"{len(found)} exports in {store}"
    return found[0].files["model/model.safetensors"].sha256


class Ride:
    """Runs on one store, each after the one before has ended, until one completes."""

    def __init__(self, site: Site) -> None:
        self.site, self.job = site, site.job
        self.store = site.new_store()
        self.blows: list[Blow] = []
        self.completed = self.alone = False  # alone: its worker is gone
        self.family = Family()
        self._terminal: Terminal | None = None

    @property
    def takes_more(self) -> bool:
        """Whether a further blow would come before the end of RL."""
        broken = bool(self.blows) and bool(self.blows[-1].faults)
        room = jobs.rollouts(self.store) + self.job.margin < self.job.iterations
        return room and not (self.completed or self.alone or broken)

    def take(self, victim: str, rng: random.Random) -> None:
        """Let the run continue for a while, strike the victim, and see what comes of it."""
        how = "SIGSTOP" if victim in victims.STOPPED else "SIGKILL"
        blow = Blow(DEPLOYED, f"{victim.removeprefix('stopped-')}, {how}")
        self.blows.append(blow)
        terminal = self.terminal
        blow.log = str(terminal.path)
        wanted = self.job.reached(self.store) + rng.choice(self.job.points)
        more_s = rng.uniform(0, 0.5)
        blow.point = f"{self.job.unit} {wanted} + {more_s:.2f} s"
        try:
            self._wait_for(wanted)
            time.sleep(more_s)
            began = time.monotonic()
            self.strike(victim, blow)
            self._see(victim, blow)
            blow.seconds = time.monotonic() - began
        except (AssertionError, LookupError) as error:
            blow.faults.append(str(error))

    @property
    def terminal(self) -> Terminal:
        """The terminal of the run that continues; where none does, one is started."""
        if self._terminal is None:
            self._terminal = self.site.terminal(self.store)
        return self._terminal

    def strike(self, victim: str, blow: Blow) -> None:
        """Kill or stop the victim; note in ``blow`` how long it takes until it is named."""
        stopped = victim in victims.STOPPED
        shown = len(self.terminal.text())
        target = victims.find(self.site.home, victim)
        self.look()
        target.suspend() if stopped else target.kill()
        kind, limit_s = victim.removeprefix("stopped-"), STOPPED_S if stopped else NAMED_S
        if kind not in CAUSES:
            return
        named_s = until(lambda: CAUSES[kind] in self.terminal.text()[shown:], limit_s)
        if named_s is not None:
            blow.note(f"named after {named_s:.1f} s")
        elif self.terminal.process.poll() != 0:
            blow.faults.append(f"the terminal did not name it within {limit_s:.0f} s")

    def look(self) -> None:
        """Take in the processes that the run has now."""
        self.family.look(*self.site.processes())

    def _wait_for(self, wanted: int) -> None:
        terminal = self.terminal
        until(lambda: self.job.reached(self.store) >= wanted or terminal.ended(), RUN_S)
        reached = self.job.reached(self.store)
        assert reached >= wanted, f"at {reached}, not at {wanted}:\n{terminal.text()[-3000:]}"

    def _see(self, victim: str, blow: Blow) -> None:
        """Note whether the run continues, completes or ends, and that it should."""
        if victim == "server":
            self.site.up()
        self.alone = victim == "worker"
        terminal, onward = self.terminal, self.job.reached(self.store) + self.job.onward

        def seen() -> bool:
            self.look()
            return terminal.ended() or (not self.alone and self.job.reached(self.store) >= onward)

        assert until(seen, RUN_S, look_s=1.0) is not None, "neither continued nor ended"
        if not terminal.ended():
            blow.note("continued")
            return
        self._terminal = None
        state = self._final_state(blow)
        self.site.up()
        if victim in self.job.outlived and not self.completed:
            blow.faults.append(f"the run did not outlive it: {state}")
        elif not self.completed and CAUSES.get(victim, "") not in state:
            blow.faults.append(f"the state does not name the cause: {state}")

    def _final_state(self, blow: Blow) -> str:
        seconds, state = final_state(STATE_S)
        self.completed = state.startswith("Completed")
        blow.note("completed" if self.completed else "ended")
        if seconds is None:
            blow.faults.append(f"no final state within {STATE_S:.0f} s")
        return state.partition("\n")[0][:200]

    def complete(self) -> None:
        """Let the run complete, once more where it has ended. Raises AssertionError if it fails."""
        if self.completed:
            return
        terminal = self.terminal
        try:
            ended = until(lambda: self.look() or terminal.ended(), RUN_S, look_s=1.0)
            assert ended is not None, "the run did not end"
            code = terminal.process.returncode
            assert code == 0, f"the last run ended with {code}:\n{terminal.text()[-3000:]}"
        finally:
            terminal.kill()

    def finish(self) -> list[Blow]:
        """Let the run complete; return the blows with their verdicts."""
        found = ""
        try:
            self.complete()
            found = digest(self.store)
        except AssertionError as error:
            self.blows[-1].faults.append(str(error))
        self.site.up()
        left = self.family.left(GONE_S)
        for blow in self.blows:
            blow.orphans = left
            if found:
                blow.compare(found, self.site.expected)
        return self.blows


def ordeal(site: Site, dealt: list[tuple[str, random.Random]]) -> Iterator[Blow]:
    """Deal the blows in this order, to as few runs as they allow; yield each once there are weights
    to compare."""
    ride: Ride | None = None
    for victim, rng in dealt:
        if ride is not None and not ride.takes_more:
            yield from ride.finish()
            ride = None
        ride = ride or Ride(site)
        ride.take(victim, rng)
    if ride is not None:
        yield from ride.finish()


def harassed(site: Site) -> Blow:
    """Kill the engine of one run every third iteration; return what became of it."""
    ride, kills = Ride(site), 0
    terminal = ride.terminal
    blow = Blow(DEPLOYED, "engine, SIGKILL again and again", "every third iteration")
    blow.log = str(terminal.path)
    ride.blows.append(blow)
    until(lambda: jobs.rollouts(ride.store) > 0 or terminal.ended(), RUN_S)
    began = time.monotonic()
    try:
        for wanted in range(3, site.job.iterations, 3):
            until(lambda n=wanted: jobs.rollouts(ride.store) >= n or terminal.ended(), RUN_S)
            ride.strike("engine", blow)
            kills += 1
        ride.complete()
    except (AssertionError, LookupError) as error:
        blow.faults.append(str(error))
    blow.seconds = time.monotonic() - began
    share = site.seconds / blow.seconds
    blow.outcome = f"outlived {kills} kills, productive share {share:.2f}"
    ride.completed = not blow.faults
    ride.finish()
    return blow


def final_state(limit_s: float) -> tuple[float | None, str]:
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

    seconds = until(final, limit_s)
    return seconds, f"{state.name}: {state.message}"


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
