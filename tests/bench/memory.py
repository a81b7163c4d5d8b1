"""Memory of every process of a flow over a thousand iterations: flat once it is warm.

Tiny iterations, so that what grows with their number is seen and not what a batch needs. Looked at
are the resident bytes of the flow, its workers and Ray's own processes.
"""

import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from subprocess import STDOUT, Popen
from tempfile import TemporaryDirectory, TemporaryFile

import psutil

from flows.paths import ROOT
from schemas.errors import UserError
from tests.bench.grpo import SMALL, Job, job_of
from tests.bench.measures import Measure
from tests.bench.peers.processes import importing

ITERATIONS, WARM = 1000, 200
LOOK_S = 2.0
LIMIT_S = 3600.0
MOST_MIB = 0.02  # growth of an iteration, of which an allocator's own noise is part
MIB = 2**20

Seen = Mapping[str, Sequence[tuple[int, float]]]  # process -> (iteration, MiB) at each look


def measures() -> list[Measure]:
    """Return the growth of each process, with vLLM engines; about twenty minutes."""
    with TemporaryDirectory() as name:
        job = job_of(Path(name), replace(SMALL, steps=ITERATIONS // 32))
        job = replace(
            job,
            folder=f"{name}/run",
            steps=ITERATIONS,
            prompts=2,
            samples=2,
            new_tokens=4,
            threads=1,
            engine="vllm",
            checkpoint_every=50,
        )
        seen = _looked_at(job)
    return _figures(seen)


def growth_mib(looks: Sequence[tuple[int, float]]) -> float:
    """Return the MiB that an iteration adds after WARM ones: between the medians of the first and
    the last fifth of the looks."""
    warm = [look for look in looks if look[0] >= WARM]
    fifth = max(1, len(warm) // 5)
    begun, ended = warm[:fifth], warm[-fifth:]
    iterations = median(i for i, _ in ended) - median(i for i, _ in begun)
    if iterations <= 0:
        return 0.0
    return (median(mib for _, mib in ended) - median(mib for _, mib in begun)) / iterations


def _figures(seen: Seen) -> list[Measure]:
    result = []
    for process, looks in sorted(seen.items()):
        if max(iteration for iteration, _ in looks) < ITERATIONS * 0.9:
            continue  # of a stage before RL
        at = [next((mib for i, mib in looks if i >= when), looks[-1][1]) for when in (1, WARM)]
        note = f"{at[0]:.0f} MiB first, {at[1]:.0f} at {WARM}, {looks[-1][1]:.0f} at the end"
        grown = round(growth_mib(looks), 4)
        name = f"memory: {process}, MiB an iteration"
        result.append(Measure(name, grown, most=MOST_MIB, note=note))
    return result


def _looked_at(job: Job) -> Seen:
    """Run ``job``; return what was seen meanwhile. Raises UserError where it fails, with its last
    words."""
    command = [sys.executable, "-m", "tests.bench.peers.ours_pipeline", json.dumps(asdict(job))]
    seen: dict[str, list[tuple[int, float]]] = defaultdict(list)
    with (
        TemporaryFile("w+", errors="replace") as said,
        Popen(command, env=importing({}), cwd=ROOT, stdout=said, stderr=STDOUT) as process,
    ):
        limit = threading.Timer(LIMIT_S, process.kill)
        limit.start()
        while process.poll() is None:
            iteration = _iteration(Path(job.folder) / "store")
            for name, mib in _held(process.pid):
                seen[name].append((iteration, mib))
            time.sleep(LOOK_S)
        limit.cancel()
        if process.returncode:
            said.seek(0)
            raise UserError(
                f"{' '.join(command)[:200]} ended with {process.returncode}: {said.read()[-2000:]}"
            )
    return seen


def _iteration(store: Path) -> int:
    folders = list((store / "rollouts").glob("*/*"))
    return max((int(each.name) for each in folders if each.name.isdigit()), default=0)


def _held(root: int) -> list[tuple[str, float]]:
    """Return the MiB of each process below ``root``; those of one name are numbered by age."""
    found, numbers = [], Counter[str]()
    with suppress(psutil.Error):
        below = psutil.Process(root).children(recursive=True)
        for each in sorted(below, key=lambda process: process.create_time()):
            with suppress(psutil.Error):
                name = each.name()
                numbers[name] += 1
                found.append((f"{name} {numbers[name]}", each.memory_info().rss / MIB))
    return found
