"""What an iteration of a flow costs besides its work: with Prefect, Ray and two engines.

The fixed cost is where the line through the seconds of iterations of several sizes meets no
prompts. It holds what each token of the longest answer costs however many rows there are.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from tests.bench.grpo import LARGE, NEVER, PIPELINE, SMALL, WARMUP, Job, job_of, sides
from tests.bench.measures import Measure
from tests.bench.peers.processes import Timed

PROMPTS = (8, 16, 24, 32)
ROUNDS = 2
SCORED = "first"  # old log-probs of a pass of their own


def measures() -> list[Measure]:
    """Return the fixed cost, the time outside the phases, and what ``fused`` saves; about six
    minutes."""
    with TemporaryDirectory() as name:
        job = job_of(Path(name), SMALL)
        jobs = [replace(job, prompts=prompts) for prompts in PROMPTS]
        *sized, scored = _alternating([*jobs, replace(job, old_logprobs=SCORED)])
    seconds = [_median(runs, "step") for runs in sized]
    fused, saved = sized[-1], 1 - _median(sized[-1], "adv") / _median(scored, "adv")
    shown = ", ".join(f"{p}: {s:.3f}" for p, s in zip(PROMPTS, seconds, strict=True))
    return [
        Measure(
            "iteration: fixed cost, s",
            fixed_s(PROMPTS, seconds),
            most=0.15,
            note=shown,
            is_absolute=True,
        ),
        Measure(
            "iteration: outside its phases, s",
            _median(fused, "outside"),
            most=0.15,
            is_absolute=True,
        ),
        Measure("fused: share of the advantage phase saved", round(saved, 3), least=0.8),
    ]


def checkpoints() -> list[Measure]:
    """Return what a checkpoint an iteration adds at 43 M parameters; about ten minutes."""
    with TemporaryDirectory() as name:
        job = job_of(Path(name), LARGE)
        with_, without = _alternating([job, replace(job, checkpoint_every=NEVER)])
    share = _median(with_, "step") / _median(without, "step") - 1
    note = f"{_median(with_, 'step'):.2f} s with, {_median(without, 'step'):.2f} s without"
    return [
        Measure("43 M: checkpoints, share of an iteration", round(share, 3), most=0.05, note=note)
    ]


def beside() -> list[Measure]:
    """Return how much longer an iteration takes beside a process that spins on one of two cores;
    about ten minutes."""
    found = []
    for size in (SMALL, LARGE):
        idle, shared = list[Timed](), list[Timed]()
        with TemporaryDirectory() as name:
            job = replace(job_of(Path(name), size), checkpoint_every=NEVER)
            for number in range(size.rounds):
                idle += _alternating([replace(job, folder=f"{name}/idle-{number}")], rounds=1)[0]
                with _spinning():
                    busy = replace(job, folder=f"{name}/busy-{number}")
                    shared += _alternating([busy], rounds=1)[0]
        alone, beside_it = _median(idle, "step"), _median(shared, "step")
        found.append(
            Measure(
                f"{size.name}: an iteration beside a spinning process, over one alone",
                round(beside_it / alone, 2),
                most=2.2,
                note=f"{beside_it:.2f} and {alone:.2f} s",
            )
        )
    return found


@contextmanager
def _spinning() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def fixed_s(prompts: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the seconds of an iteration of no prompts, by least squares."""
    _, intercept = np.polyfit(prompts, seconds, 1)
    return round(float(intercept), 3)


def _alternating(jobs: Sequence[Job], rounds: int = ROUNDS) -> list[list[Timed]]:
    """Return the runs of each job."""
    run, found = sides()[PIPELINE], [list[Timed]() for _ in jobs]
    for round_ in range(rounds):
        for number, (job, runs) in enumerate(zip(jobs, found, strict=True)):
            runs.append(run(asdict(replace(job, folder=f"{job.folder}/{number}-{round_}"))))
    return found


def _median(runs: Sequence[Timed], part: str) -> float:
    """Return the median seconds of a part of an iteration; ``step`` is the whole."""
    return round(median(step["phases"][part] for run in runs for step in run.steps[WARMUP:]), 4)
