"""SFT and reward-model training beside TRL's: the same model, rows, batch, dtype and threads, the
sides alternating in one run.

Rows are of one length, or ragged: log-normal lengths of the same mean. TRL trains ragged rows both
padded and packed, and the better of the two counts. Rates are of useful tokens, padding left out.
TRL runs in an environment of its own, ``.venv-trl``, which the first run makes.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.grpo import base_model
from tests.bench.measures import Measure
from tests.bench.peers.processes import Timed, by_trl, ours

WARMUP = 2  # steps of a process that are not counted
ROUNDS = 3
MEAN, LONGEST = 37, 300  # tokens of a row
SPREAD = 0.9  # standard deviation of the logarithm of a ragged row's length
STEPS, ROWS = 14, 256
OURS, PADDED, PACKED = "ours", "TRL", "TRL, packed"
EQUAL, RAGGED, PAIRS = "SFT, equal rows", "SFT, ragged rows", "reward model"


@dataclass(frozen=True, slots=True)
class Job:
    """What one process of any side does; ``lr`` is too small to change anything.

    ``rows``: of an optimizer step, for a reward model pairs. ``longest``: tokens of the longest
    row. ``packed``: for TRL only.
    """

    model: str
    rows_file: str
    folder: str
    longest: int
    kind: str = "sft"
    packed: bool = False
    steps: int = STEPS
    rows: int = ROWS
    lr: float = 1e-8
    threads: int = 2
    micro_batch_tokens: int = 4096


def measures() -> list[Measure]:
    """Return tokens per second and memory of each side, and the ratios; about five minutes."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        base_model(folder / "model", {"max_position_embeddings": 512})
        jobs = _jobs(folder)
        found: dict[tuple[str, str], list[Timed]] = {}
        for round_ in range(ROUNDS):
            for what, job in jobs.items():
                for side, run in _sides(what).items():
                    mine = replace(job, folder=str(folder / f"{len(found)}-{round_}"))
                    found.setdefault((what, side), []).append(run(asdict(mine)))
    return _figures(found)


def lengths(draw: random.Random, count: int) -> list[int]:
    """Return ``count`` ragged lengths: log-normal of mean MEAN, cut to 2 and LONGEST."""
    middle = log(MEAN) - SPREAD**2 / 2
    return [min(LONGEST, max(2, round(draw.lognormvariate(middle, SPREAD)))) for _ in range(count)]


def _jobs(folder: Path) -> dict[str, Job]:
    """Write the rows; return the jobs on them."""
    draw, jobs = random.Random(0), {}
    vocabulary = json.loads((folder / "model" / "config.json").read_text())["vocab_size"]
    count = STEPS * ROWS
    for what, kind in ((EQUAL, "sft"), (RAGGED, "sft"), (PAIRS, "reward_model")):
        path = folder / f"{len(jobs)}.jsonl"
        keys = ["input_ids"] if kind == "sft" else ["chosen_ids", "rejected_ids"]
        with path.open("w") as file:
            for length in lengths(draw, count) if what == RAGGED else [MEAN] * count:
                print(
                    json.dumps({key: draw.choices(range(vocabulary), k=length) for key in keys}),
                    file=file,
                )
        longest = LONGEST if what == RAGGED else MEAN
        jobs[what] = Job(str(folder / "model"), str(path), str(folder), longest, kind)
    return jobs


def _sides(what: str) -> dict[str, Callable[[Mapping[str, Any]], Timed]]:
    padded = partial(by_trl, "trl_supervised.py")
    sides: dict[str, Callable[[Mapping[str, Any]], Timed]] = {
        OURS: partial(ours, "tests.bench.peers.ours_supervised"),
        PADDED: padded,
    }
    if what == RAGGED:
        sides[PACKED] = lambda job: padded({**job, "packed": True})
    return sides


def _figures(found: Mapping[tuple[str, str], list[Timed]]) -> list[Measure]:
    result, rates = [], dict[tuple[str, str], float]()
    for (what, side), runs in found.items():
        each = [_rate(run) for run in runs]
        rates[what, side] = median(each)
        note = f"{min(each):,.0f} to {max(each):,.0f}"
        result.append(Measure(f"{what}: {side}, tokens/s", round(median(each)), note=note))
        peak = max(run.peak_bytes for run in runs) / 2**30
        result.append(Measure(f"{what}: {side}, peak memory, GiB", round(peak, 2)))
    for what, least in ((EQUAL, 1.5), (RAGGED, 5.0), (PAIRS, 1.5)):
        theirs = max(rate for (of, side), rate in rates.items() if of == what and side != OURS)
        ratio = round(rates[what, OURS] / theirs, 2)
        name = f"{what}: our tokens/s over TRL's"
        result.append(Measure(name, ratio, least=least, is_speedup=True))
    ragged = round(rates[EQUAL, OURS] / rates[RAGGED, OURS], 3)
    result.append(Measure("our time per useful token, ragged over equal", ragged, most=1.1))
    return result


def _rate(run: Timed) -> float:
    steps = run.steps[WARMUP:]
    return sum(step["tokens"] for step in steps) / sum(step["seconds"] for step in steps)
