"""Reward workers under load: rows that hang, rows that are scored while others are sampled, memory
after many rows, and what confining a program costs."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from rlcore.cluster.in_process import InProcessWorker
from rlcore.rewards.pool import RewardPool
from rlcore.rewards.types import RewardRow
from rlcore.rewards.worker import RewardWorker
from schemas.rl import RewardFunction, RewardSection
from tests.bench.measures import Measure
from tests.bench.sandbox import measure as sandbox_seconds

HUNG, HUNG_SHARE, LIMIT_S, WORKERS = 400, 0.05, 1.0, 4
ROLLOUT_S, ROW_CPU_S = 20.0, 0.02
SCORINGS, SETTLED = 20_000, 2_000
SOLVES = "```python\nprint(int(input()) + 1)\n```"
TESTS = json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})
FUNCTIONS = f"{Path(__file__).parent / 'bench_rewards.py'}"


def measures() -> list[Measure]:
    """Return the figures; about six minutes, most of them for the memory of ``code``."""
    ratios = sandbox_seconds()
    return [
        *hung_rows(),
        *overlap(),
        *memory("math", "So it is $\\boxed{\\frac{1}{2}}$.", "0.5"),
        *memory("code", SOLVES, TESTS),
        *(
            Measure(
                f"sandbox {name.removesuffix('_s')}: pass over a bare interpreter",
                round(seconds / ratios["bare_s"], 2),
                most=2.5,
                note=f"{1000 * seconds:.1f} ms",
            )
            for name, seconds in ratios.items()
            if name != "bare_s"
        ),
    ]


def hung_rows() -> list[Measure]:
    """Score rows of which some hang until the clock ends them."""
    every = round(1 / HUNG_SHARE)
    rows = _rows("hang" if i % every == 0 else "ok" for i in range(HUNG))
    with _pool(f"{FUNCTIONS}:hang_or_not", WORKERS, timeout_s=LIMIT_S) as pool:
        pool.score(_rows(["ok"] * WORKERS))  # the workers' start is none of the phase
        began = time.perf_counter()
        rewards = pool.score(rows)
        taken = time.perf_counter() - began
    hung = sum(reward.outcome == "timeout" for reward in rewards)
    bound = hung * LIMIT_S / WORKERS
    note = f"{hung} of {HUNG} rows hang {LIMIT_S:g} s, {WORKERS} workers: {taken:.1f} s"
    return [
        Measure("rows that hang", hung, least=HUNG * HUNG_SHARE, most=HUNG * HUNG_SHARE),
        Measure(
            "phase over (hung x limit / workers)", round(taken / bound, 2), most=1.5, note=note
        ),
    ]


def overlap() -> list[Measure]:
    """Score rows that come one after the other, as from a rollout, and wait for the rest."""
    workers = os.cpu_count() or 1
    count = int(0.8 * ROLLOUT_S * workers / ROW_CPU_S)
    rows = _rows("busy" for _ in range(count))
    with _pool(f"{FUNCTIONS}:busy", workers, timeout_s=10) as pool:
        pool.score(_rows(["busy"] * workers))
        began = time.perf_counter()
        for index, row in enumerate(rows):
            due = began + ROLLOUT_S * (index + 1) / count
            time.sleep(max(0.0, due - time.perf_counter()))
            pool.start(row)
        ended = time.perf_counter()
        pool.score(rows)
        after = time.perf_counter() - ended
    note = (
        f"{count} rows of {1000 * ROW_CPU_S:g} ms, {workers} workers, a rollout of {ROLLOUT_S:g} s"
    )
    return [
        Measure("rewards behind the last row / rollout", round(after / ROLLOUT_S, 3), most=0.1),
        Measure("seconds behind the last row", round(after, 2), note=note),
    ]


def memory(name: str, response: str, truth: str) -> list[Measure]:
    """Score many rows by one function; return the memory of all processes against an early one."""
    workers = os.cpu_count() or 1
    sizes: dict[int, int] = {}
    with _pool(name, workers, timeout_s=30) as pool:
        for done in range(0, SCORINGS, 1000):
            rows = [
                RewardRow(f"t{done + i}", "s", response, truth, {}, "stop", 3) for i in range(1000)
            ]
            assert all(reward.score == 1.0 for reward in pool.score(rows))
            sizes[done + 1000] = _resident()
    last, early = sizes[SCORINGS], sizes[SETTLED]
    note = f"{early / 2**20:.0f} to {last / 2**20:.0f} MiB"
    title = f"{name}: memory after {SCORINGS:,} rows / after {SETTLED:,}"
    return [Measure(title, round(last / early, 3), most=1.1, note=note)]


def _resident() -> int:
    """Return the resident bytes of this process and all below it."""
    whole = psutil.Process()
    total = 0
    for process in (whole, *whole.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def _rows(responses: Iterator[str] | Sequence[str]) -> list[RewardRow]:
    return [
        RewardRow(f"t{index}", "s", response, None, {}, "stop", 3, "p")
        for index, response in enumerate(responses)
    ]


@contextmanager
def _pool(name: str, workers: int, *, timeout_s: float) -> Iterator[RewardPool]:
    section = RewardSection(
        functions=(RewardFunction(name=name),), timeout_s=timeout_s, max_timeout_fraction=1.0
    )
    with ExitStack() as stack:
        handles = []
        for index in range(workers):
            worker = RewardWorker(section)
            stack.callback(worker.close)
            handles.append(InProcessWorker.of(f"reward-{index}", worker))
        yield RewardPool(handles, section, timeout_s=600)
