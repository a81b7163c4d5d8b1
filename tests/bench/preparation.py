"""Data preparation beside ``datasets.map``: time of the same work, and memory as rows grow.

The same work: rows of JSON with prompt and completion, the chat template applied to the prompt and
to both, ids and loss mask made, all written as Parquet. ``datasets.map`` takes a row at a time by
default; batched and in two processes it is timed too. This project deduplicates exactly meanwhile.

Peers, whose time is a multiple of their rows, are timed on few; this project, whose processes start
first, on as few and on a million.

Environment: PREPARATION_ROWS, of the peers (150,000); PREPARATION_LARGE, rows of one more run
of this project alone (10,000,000 takes a quarter of an hour and 20 GB of disk).
"""

import json
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from flows.paths import ROOT
from rlcore.models.tokenizer import train_tokenizer
from schemas.errors import UserError
from tests.bench.measures import Measure

ROWS, MILLION, LARGEST = 150_000, 1_000_000, 10_000_000
LEAST, MOST_GIB = 0.9, 2.0
BEYOND = "datasets.map, 2 processes"  # which LEAST is asked of: as many cores as ours
LOOK_S = 0.2
VOCABULARY = 1024
NAMES = ("Tom", "Ann", "Ben", "Eva", "Max", "Zoe", "Ida", "Leo", "Mia", "Sam")
THINGS = ("eggs", "apples", "books", "stones", "coins", "cards", "pens", "shells", "stamps")


@dataclass(frozen=True, slots=True)
class Job:
    """One preparation of the file ``train``. ``side``: "ours" or "map", which alone reads
    ``batched`` and ``processes``."""

    folder: str
    train: str
    test: str
    tokenizer: str
    side: str = "ours"
    deduplicate: str = "exact"
    batched: bool = False
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of a preparation, and the most MiB that its processes held at once (PSS)."""

    seconds: float
    peak_mib: float


def measures() -> list[Measure]:
    """Return the figures of this benchmark; about six minutes on an idle machine."""
    count = int(os.environ.get("PREPARATION_ROWS", ROWS))
    large = int(os.environ.get("PREPARATION_LARGE", 0))
    with TemporaryDirectory() as name:
        job = _made(Path(name), count)
        first = taken(job)
        peers = {
            "datasets.map": replace(job, side="map"),
            "datasets.map, batched": replace(job, side="map", batched=True),
            "datasets.map, 2 processes": replace(job, side="map", processes=2),
            "datasets.map, batched, 2 processes": replace(
                job, side="map", batched=True, processes=2
            ),
        }
        theirs = {peer: taken(each) for peer, each in peers.items()}
        ours = [first, taken(job)]
        many = taken(_made(Path(name), MILLION))
        found = rates(theirs, count, ours, many)
        found += memory_line({count: max(each.peak_mib for each in ours), MILLION: many.peak_mib})
        if large:
            whole = taken(_made(Path(name), large))
            note = f"{1e6 * whole.seconds / large:.1f} us a row"
            found.append(
                Measure(
                    f"preparation, GiB at {large:,} rows",
                    round(whole.peak_mib / 1024, 2),
                    most=MOST_GIB,
                    note=note,
                )
            )
    return found


def rates(theirs: dict[str, Taken], count: int, ours: list[Taken], many: Taken) -> list[Measure]:
    """Return microseconds a row of ours on ``count`` rows and on a million, and how much faster
    that is than each peer on ``count``."""
    few = 1e6 * median(each.seconds for each in ours) / count
    rate = 1e6 * many.seconds / MILLION
    found = [
        Measure(f"preparation of {count:,} rows, us a row", round(few, 1)),
        Measure(f"preparation of {MILLION:,} rows, us a row", round(rate, 1)),
    ]
    for peer, each in theirs.items():
        their_rate = 1e6 * each.seconds / count
        least = LEAST if peer == BEYOND else None
        note = f"{their_rate:.0f} us a row, {each.peak_mib:.0f} MiB; {count:,} rows of both:"
        found.append(
            Measure(
                f"preparation, speed over {peer}",
                round(their_rate / rate, 2),
                least,
                note=f"{note} {their_rate / few:.2f}",
                is_speedup=least is not None,
            )
        )
    return found


def rows_of(count: int, seed: int) -> list[dict[str, str]]:
    """Return word problems with their solutions, of 170 characters each."""
    draw = random.Random(seed)
    return [_row(draw) for _ in range(count)]


def taken(job: Job) -> Taken:
    """Prepare the rows of ``job`` in a process of its own. Raises UserError where it fails."""
    with TemporaryDirectory(dir=job.folder) as folder:
        said = json.dumps(asdict(replace(job, folder=folder)))
        command = [sys.executable, "-m", "tests.bench.peers.preparation", said]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            peak = 0.0
            while process.poll() is None:
                peak = max(peak, _held_mib(process.pid))
                time.sleep(LOOK_S)
            assert process.stdout is not None
            lines = process.stdout.read().split()
    if process.returncode:
        raise UserError(f"{' '.join(command)[:200]} ended with {process.returncode}")
    return Taken(float(lines[-1]), peak)


def memory_line(peaks_mib: dict[int, float]) -> list[Measure]:
    """Return the bytes that a row adds, from the peaks at two numbers of rows, and what is to be
    expected of LARGEST."""
    (few, less), (many, more) = sorted(peaks_mib.items())
    slope = max((more - less) / (many - few), 0.0)
    at_largest = (more + slope * (LARGEST - many)) / 1024
    note = f"{less:.0f} MiB at {few:,} rows, {more:.0f} at {many:,}; all processes"
    return [
        Measure("preparation, bytes of memory a row", round(slope * 2**20, 1), note=note),
        Measure(
            f"preparation, GiB expected at {LARGEST:,} rows", round(at_largest, 2), most=MOST_GIB
        ),
    ]


def _held_mib(root: int) -> float:
    """Return what the process and all below it hold, shared pages counted once."""
    total = 0
    with suppress(psutil.Error):
        parent = psutil.Process(root)
        for process in [parent, *parent.children(recursive=True)]:
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total / 2**20


def _made(folder: Path, count: int) -> Job:
    """Write the files of a job of ``count`` rows into ``folder``."""
    train, test, saved = folder / f"{count}.jsonl", folder / "test.jsonl", folder / "tokenizer"
    _write(train, count, seed=0)
    _write(test, 100, seed=1)
    texts = [f"{row['prompt']} {row['completion']}" for row in rows_of(300, seed=0)]
    train_tokenizer(texts, VOCABULARY).save_pretrained(saved)
    return Job(str(folder), str(train), str(test), str(saved))


def _write(path: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    with path.open("w") as file:
        file.writelines(json.dumps(_row(draw)) + "\n" for _ in range(count))


def _row(draw: random.Random) -> dict[str, str]:
    some, more, friends = draw.randrange(2, 10**6), draw.randrange(2, 99), draw.randrange(2, 99)
    name, things = draw.choice(NAMES), draw.choice(THINGS)
    product, total = more * friends, some + more * friends
    return {
        "prompt": f"{name} has {some} {things} and gets {more} more from each of {friends} friends."
        f" After that {name} looks for a box which holds them all. How many {things} does {name}"
        " have now?",
        "completion": f"{name} gets {more} {things} from each of {friends} friends, which is {more}"
        f" * {friends} = {product} {things}.\nTogether with the {some} {things} from before, that"
        f" is {some} + {product} = {total}.\n#### {total}",
        "ground_truth": str(total),
    }
