"""Blows to a run in one process: signals, a disk that is full, a bucket that is silent.

The run is the whole pipeline with learner and engine in the flow's process, on the Prefect server
of this environment; store, loop and checkpoints are those of any run.
"""

import random
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.blows import INLINE, Blow
from tests.chaos.bucket import Bucket
from tests.chaos.forks import Forks, Run
from tests.chaos.places import Place, fill, local, remote, remove
from tests.chaos.watching import Family, until

RUN_S = 600.0
GONE_S = 60.0
STOPPED_S = 5.0
SILENT_S = 60.0
DISK_BYTES = 256 * 2**20  # a run says before it starts that less than it may need is too little
NO_SPACE = "No space left on device"
LAST = 2  # artifacts of a run behind which its end is too near for a blow
# Where a process can kill itself, as tests.flows.crash_points names it.
POINTS = (
    *("sft", "rollout", "reward", "advantage", "checkpoint"),
    *("update", "sync", "before-sync", "export"),
)
COMPONENTS = {
    "killed": "process, SIGKILL",
    "killed-at": "process, SIGKILL",
    "terminated": "process, SIGTERM",
    "stopped": f"process, SIGSTOP for {STOPPED_S:.0f} s",
    "disk-full": "disk of the store, full",
    "bucket-silent": f"bucket, silent for {SILENT_S:.0f} s",
}
OUTLIVED = ("stopped", "bucket-silent")  # the run must not end of these


@dataclass
class Inline:
    """Runs that take seconds, one at a time.

    ``plain`` and ``small`` fork them; those of ``small`` see the small disk ``disk``.
    """

    folder: Path
    plain: Forks
    small: Forks
    disk: Path
    bucket: Bucket
    expected: str = ""  # digest of an undisturbed run
    artifacts: int = 0  # that it makes

    def undisturbed(self) -> None:
        """Make the run that the others are compared with."""
        place = local(self.folder / "undisturbed", self.plain, self.folder / "undisturbed-store")
        run = place.start()
        code = run.code(RUN_S)
        assert code == 0, f"the undisturbed run ended with {code}:\n{run.text()[-3000:]}"
        self.expected, self.artifacts = place.digest(), len(place.names())

    def strike(self, kind: str, number: int, rng: random.Random) -> Blow:
        """Start a run, deal it a blow of ``kind``, and start it again where it ended of it."""
        place = self._place(kind, number)
        blow = Blow(INLINE, COMPONENTS[kind], log=str(place.folder / "output.txt"))
        family = Family()
        try:
            code = self._struck(kind, place, blow, rng, family)
            if kind == "disk-full":
                self._ballast().unlink()
            began = time.monotonic()
            if code != 0:
                run = place.start()
                code = _ended(run, family, blow)
                assert code == 0, f"the rerun ended with {code}: {last_line(run.text())}"
                blow.note("the rerun did not")
            blow.seconds += time.monotonic() - began
            # A killed process cannot remove its weights from shared memory: the next run does.
            blow.orphans += family.shared_memory()
            blow.compare(place.digest(), self.expected)
        except AssertionError as error:
            blow.faults.append(str(error))
        if blow.held:
            remove(place)
        return blow

    def _struck(
        self, kind: str, place: Place, blow: Blow, rng: random.Random, family: Family
    ) -> int:
        """Deal the blow to a run, note what it did, and return the code that it ended with."""
        if kind == "killed-at":
            blow.point = rng.choice(POINTS)
            run = place.start(blow.point)
        else:
            run = place.start()
            blow.point = self._reached(run, place, rng)
        began = time.monotonic()
        family.look(run.process)
        self._hit(kind, run)
        code = _ended(run, family, blow)
        said = last_line(run.text())
        blow.seconds = 0.0 if kind == "killed-at" else time.monotonic() - began
        blow.note("outlived it" if code == 0 else f"ended with {code}")
        if kind in OUTLIVED and code != 0:
            blow.faults.append(f"the run did not outlive it: {said}")
        if kind == "disk-full" and code != 0:
            blow.note(NO_SPACE)
            if NO_SPACE not in said:
                blow.faults.append(f"the last line is {said!r}")
        return code

    def _reached(self, run: Run, place: Place, rng: random.Random) -> str:
        """Return a random point, in words, once the run is there."""
        wanted, more_s = rng.randrange(self.artifacts - LAST), rng.uniform(0, 0.3)
        seen: set[str] = set()

        def there() -> bool:
            seen.update(place.names())
            return len(seen) >= wanted or run.ended()

        until(there, RUN_S, look_s=0.02)
        time.sleep(more_s)
        assert not run.ended(), f"the run ended before artifact {wanted}: {last_line(run.text())}"
        return f"artifact {wanted} + {more_s:.2f} s"

    def _hit(self, kind: str, run: Run) -> None:
        match kind:
            case "killed":
                run.process.kill()
            case "terminated":
                run.process.terminate()
            case "stopped":
                run.process.suspend()
                time.sleep(STOPPED_S)
                run.process.resume()
            case "disk-full":
                fill(self._ballast())
            case "bucket-silent":
                self.bucket.be_silent(SILENT_S)

    def _ballast(self) -> Path:
        return self.small.seen_by(self.disk / "ballast")

    def _place(self, kind: str, number: int) -> Place:
        folder = self.folder / f"{number}-{kind}"
        if kind == "bucket-silent":
            return remote(folder, self.plain, self.bucket, str(number))
        if kind == "disk-full":
            return local(folder, self.small, self.disk / str(number))
        return local(folder, self.plain, folder / "store")


def _ended(run: Run, family: Family, blow: Blow) -> int:
    """Return the code that a run ended with; note the processes that it left."""
    family.look(run.process)
    until(lambda: family.look() or run.ended(), RUN_S, look_s=0.1)
    code = run.code(0)
    blow.orphans += family.lingering(GONE_S)
    return code


def last_line(text: str) -> str:
    """Return the last line that says something: the sentence that a run ends with."""
    return ([line.strip() for line in text.splitlines() if line.strip()] or [""])[-1]
