"""Sampling, and the weights' way to what samples: tokens a second of the transformers engine in one
process, vLLM behind this project's pool beside a bare vLLM loop, a sync beside a copy of the bytes.

Sides alternate in one run; no row ends early, so that all sample equally many tokens. Prompts are
new in each round, as a prefix cache would else hold those of the round before. A vLLM has a process
of its own and one thread, as in the quickstart.

A copy is ``numpy.copyto`` on one thread, into memory that has been written before.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch

from flows.paths import RECIPES, ROOT
from rlcore.cluster.in_process import InProcessWorker
from rlcore.cluster.ray_cluster import RayCluster
from rlcore.cluster.types import Placement, Worker
from rlcore.engines.pool import EnginePool, load_model_directory
from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec, Sampling
from rlcore.engines.vllm_engine import engine_env
from rlcore.learner.pool import LearnerPool
from rlcore.models.weight_files import read_checkpoint
from rlcore.recipes.load import load_recipe
from rlcore.rl.sync import CANARY_TOKENS, Canary, sync_weights
from rlcore.rl.workers import Workers
from tests.bench.grpo import LARGE, base_model
from tests.bench.measures import Measure

SMALL = {"num_kv_heads": 4, "intermediate_size": 384}
SAMPLES, NEW, CONTEXT = 8, 24, 128
PROMPT = (12, 40)  # tokens, shortest and longest
VOCABULARY = 300  # ids that the quickstart's tokenizer has in any case
THREADS = 2  # of the engine in one process
WARMUP = 2  # rounds that are not counted
START_S, CALL_S = 300.0, 600.0
TOKENS_PER_S, OVER_BARE, OVER_COPY = 30_000.0, 1.15, 10.0
OURS, BARE, SYNC, COPY = "this project's pool", "bare vLLM", "a sync", "a copy"

Batch = tuple[list[list[int]], list[int]]  # prompts and their seeds


def measures() -> list[Measure]:
    """Return the figures of this benchmark; about five minutes."""
    with TemporaryDirectory() as name:
        small, large = Path(name) / "small", Path(name) / "large"
        base_model(small, SMALL)
        base_model(large, LARGE.shape)
        return [
            *(_in_process(small, rows) for rows in (256, 512)),
            *_beside_bare(large),
            *_synced(large),
        ]


def batch(rows: int, seed: int) -> Batch:
    """Return ``rows`` requests, SAMPLES to a prompt."""
    draw = random.Random(seed)
    prompts = [
        draw.choices(range(VOCABULARY), k=draw.randint(*PROMPT)) for _ in range(rows // SAMPLES)
    ]
    repeated = [prompt for prompt in prompts for _ in range(SAMPLES)]
    return repeated, [draw.getrandbits(60) for _ in repeated]


def alternating(sides: Mapping[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds that each of ``sides`` says of each counted round, given its number."""
    found: dict[str, list[float]] = {side: [] for side in sides}
    for round_ in range(WARMUP + rounds):
        for side, run in sides.items():
            found[side].append(run(round_))
    return {side: seconds[WARMUP:] for side, seconds in found.items()}


def ratio(
    name: str, found: Mapping[str, list[float]], ours: str, other: str, most: float
) -> Measure:
    """Return the ratio of medians of two sides; the note has each pair's least and largest."""
    each = [a / b for a, b in zip(found[ours], found[other], strict=True)]
    value = round(median(found[ours]) / median(found[other]), 3)
    return Measure(name, value, most=most, note=f"of pairs {min(each):.3f} to {max(each):.3f}")


def _seconds(size: str, found: Mapping[str, list[float]]) -> list[Measure]:
    return [
        Measure(
            f"{size}: {side}, s",
            round(median(seconds), 4),
            note=f"{min(seconds):.4f} to {max(seconds):.4f}",
        )
        for side, seconds in found.items()
    ]


def _drawn(pool: EnginePool, requests: Batch) -> float:
    """Return the seconds that ``pool`` takes for ``requests``."""
    began = perf_counter()
    rows = list(pool.stream(*requests, Sampling(max_new_tokens=NEW)))
    seconds = perf_counter() - began
    assert sum(len(drawn.token_ids) for _, drawn in rows) == len(requests[0]) * NEW
    return seconds


def _in_process(model: Path, rows: int, rounds: int = 9) -> Measure:
    """Return the tokens a second of the engine without vLLM, all rows one batch."""
    torch.set_num_threads(THREADS)
    engine = TransformersEngine(EngineSpec(str(model), max_model_len=CONTEXT, max_num_seqs=rows))
    pool = _pool(InProcessWorker.of("rollout-engine-0", engine))
    load_model_directory(pool, model)
    found = alternating({OURS: lambda round_: _drawn(pool, batch(rows, round_))}, rounds)
    rates = [rows * NEW / seconds for seconds in found[OURS]]
    millions = sum(tensor.numel() for tensor in read_checkpoint(model).values()) / 1e6
    return Measure(
        f"{millions:.2f} M: sampled in one process, {rows} rows, tokens/s",
        round(median(rates)),
        least=TOKENS_PER_S,
        note=f"{min(rates):.0f} to {max(rates):.0f}; {THREADS} threads",
        is_absolute=True,
    )


def _beside_bare(model: Path, rows: int = 256, rounds: int = 5) -> list[Measure]:
    """Return what the pool, Ray and the checks add to vLLM's own loop at 43 M parameters."""
    with _both(model, rows) as (pool, bare):
        sides = {
            OURS: lambda round_: _drawn(pool, batch(rows, round_)),
            BARE: lambda round_: bare.start("seconds", batch(rows, round_), NEW).result(CALL_S),
        }
        found = alternating(sides, rounds)
    name = f"{LARGE.name}: sampling, time over bare vLLM"
    return [*_seconds(LARGE.name, found), ratio(name, found, OURS, BARE, OVER_BARE)]


@contextmanager
def _both(model: Path, rows: int) -> Iterator[tuple[EnginePool, Worker]]:
    """Yield a pool of one vLLM engine and a vLLM without all that is ours, with one model."""
    spec = EngineSpec(str(model), max_model_len=CONTEXT, max_num_seqs=rows)
    env = {**engine_env(spec), "PYTHONPATH": str(ROOT)}
    cluster = RayCluster()
    try:
        ours, bare = (
            cluster.spawn(target, *arguments, name=name, placement=Placement(env=env))
            for target, arguments, name in (
                ("rlcore.engines.vllm_engine:VllmEngine", (spec,), "rollout-engine-0"),
                ("tests.bench.peers.bare_vllm:BareVllm", (str(model), CONTEXT, rows), "bare"),
            )
        )
        pool = _pool(ours)
        load_model_directory(pool, model)
        yield pool, bare
    finally:
        cluster.close()


def _pool(worker: Worker) -> EnginePool:
    return EnginePool([worker], timeout_s=CALL_S, sync_timeout_s=START_S)


def _synced(model: Path, rounds: int = 9) -> list[Measure]:
    """Return a sync to two vLLM engines, its proofs included, beside a copy of the weights."""
    settings = {f"model.from_scratch.{name}": value for name, value in LARGE.shape.items()}
    layout = {"hardware.rollout.engine": "vllm", "hardware.rollout.engines": 2}
    recipe = load_recipe("quickstart", {**settings, **layout}, directory=RECIPES)
    canary = Canary(np.arange(CANARY_TOKENS), recipe.canary_bound)
    with TemporaryDirectory() as name, Workers(recipe) as workers:
        learner = workers.learner(model, recipe.rl.update.optimizer, name="learner", stage="rl")
        engines = workers.engines(model)
        learner.save(name).result()

        def sync(_: int) -> float:
            learner.load(name)  # as after an update, no digest is known
            return _timed_sync(learner, engines, canary)

        found = alternating({SYNC: sync, COPY: _copying(model)}, rounds)
    size = sum(tensor.nbytes for tensor in read_checkpoint(model).values()) / 1e6
    name = f"{LARGE.name}: sync of {size:.0f} MB to two engines, time over a copy"
    return [*_seconds(LARGE.name, found), ratio(name, found, SYNC, COPY, OVER_COPY)]


def _timed_sync(learner: LearnerPool, engines: EnginePool, canary: Canary) -> float:
    began = perf_counter()
    sync_weights(learner, engines, canary)
    return perf_counter() - began


def _copying(model: Path) -> Callable[[int], float]:
    """Return what copies as many bytes as ``model`` has weights and says the seconds."""
    size = sum(tensor.nbytes for tensor in read_checkpoint(model).values())
    source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    target.fill(2)

    def copy(_: int) -> float:
        began = perf_counter()
        np.copyto(target, source)
        return perf_counter() - began

    return copy
