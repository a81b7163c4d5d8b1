"""Episodes of several turns on real vLLM engines: the two schedules, unequal engines, the cache.

64 episodes of 4 turns; a tool answers each turn after a latency that is slept. Most calls are quick
and four in a hundred hang for nearly a second, so that the mean is 50 ms and the 99th percentile
1 s: a mixture of two log-normals, as one cannot have both (its p99 is at most 15 times its mean).
"""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Literal

from rlcore.algorithms.seeds import stream_seed
from rlcore.cluster.ray_cluster import RayCluster
from rlcore.cluster.types import Placement, Worker
from rlcore.engines.pool import EnginePool, load_model_directory
from rlcore.engines.types import EngineSpec, Generation, Sampling, TurnRequest
from rlcore.engines.vllm_engine import engine_env
from rlcore.envs.pool import EnvironmentPool
from rlcore.models.chat import encode_prompts
from rlcore.models.tokenizer import train_tokenizer
from rlcore.rollout.episodes import Episodes, collect
from rlcore.rollout.trajectories import Request
from rlcore.rollout.turns import TurnEncoder
from schemas.environment import EnvironmentSection
from tests.bench.measures import Measure
from tests.rlcore.engines.conftest import ROOT, tiny_model

EPISODES, TURNS = 64, 4
PROMPT, ANSWER, OBSERVATION = 96, 8, 24  # tokens
CONTEXT = 512
SAMPLING = Sampling(max_new_tokens=ANSWER)
TOKENIZER = train_tokenizer(["Two numbers and their sum."], 270)
SECTION = EnvironmentSection(
    name="tests.bench.tool:SlowTool",
    max_turns=TURNS,
    max_observation_tokens=OBSERVATION,
    concurrency=EPISODES,
)
SEEDS = (0, 1, 2)
SLOWED = 5.0
IN_FLIGHT = 2  # per engine, where engines are unequal: what one has pulled, the other cannot take
HANGS = 0.04  # share of tool calls
START_S, CALL_S = 180.0, 300.0


@dataclass(frozen=True)
class Load:
    """The episodes of a rollout, and the share of their tool calls that hang."""

    episodes: int
    hangs: float


SLOW_TOOLS = Load(EPISODES, HANGS)
# Of engines that share work: a tool that hangs for a second would be waited for by any of them.
QUICK_TOOLS = Load(EPISODES, 0.0)


class Counted(EnginePool):
    """``prefilled``: what the first engine has prefilled behind each turn of a rollout in lockstep,
    as (tokens asked, tokens computed)."""

    def __init__(self, workers: Sequence[Worker], in_flight: int) -> None:
        super().__init__(workers, timeout_s=CALL_S, sync_timeout_s=START_S, in_flight=in_flight)
        self._first = workers[0]
        self.prefilled: list[tuple[int, int]] = []

    def begin(self) -> None:
        """See ``EnginePool``."""
        super().begin()
        self.prefilled = []

    def turn(
        self, shares: Sequence[Sequence[TurnRequest]], sampling: Sampling
    ) -> Iterator[tuple[str, Generation]]:
        """See ``EnginePool``."""
        yield from super().turn(shares, sampling)
        self.prefilled.append(self._first.start("prefilled").result(CALL_S))


def latency_s(draw: random.Random, hangs: float = HANGS) -> float:
    if draw.random() < hangs:
        return draw.lognormvariate(log(0.85), 0.22)
    return draw.lognormvariate(log(0.014), 0.5)


def requests(seed: int, load: Load) -> list[Request]:
    """Return the first turns of a rollout, whose rows say how long each tool takes."""
    draw = random.Random(seed)
    rows = []
    for number in range(load.episodes):
        extra = {
            "latencies_s": [latency_s(draw, load.hangs) for _ in range(TURNS)],
            "observation": "".join(draw.choices("0123456789", k=OBSERVATION)),
        }
        rows.append(
            {
                "uid": f"{number:03d}",
                "prompt": [
                    {"role": "user", "content": "".join(draw.choices("0123456789", k=PROMPT))}
                ],
                "data_source": "bench",
                "ground_truth": "",
                "extra_info": json.dumps(extra),
            }
        )
    encoded = encode_prompts(TOKENIZER, [row["prompt"] for row in rows])
    return [
        Request(
            f"{seed}-{row['uid']}", {**row, "prompt_ids": ids}, 0, stream_seed(seed, row["uid"])
        )
        for row, ids in zip(rows, encoded, strict=True)
    ]


@dataclass(frozen=True)
class Bench:
    """Engines, and one worker of environments that has all tools under way at once."""

    engines: Sequence[Worker]
    environment: Worker

    def seconds(
        self,
        schedule: Literal["lockstep", "streaming"],
        pool: Counted,
        seed: int,
        load: Load = SLOW_TOOLS,
    ) -> float:
        """Return how long the episodes of ``seed`` take."""
        environments = EnvironmentPool([self.environment], SECTION, timeout_s=CALL_S)
        encoder = TurnEncoder(TOKENIZER, [], SECTION.max_observation_tokens)
        episodes = Episodes(pool, environments, encoder, CONTEXT)
        asked, begun = requests(seed, load), perf_counter()
        played = list(collect(asked, SAMPLING, pool, TOKENIZER, episodes, schedule=schedule))
        seconds = perf_counter() - begun
        assert [len(one.turns) for one in played] == [TURNS] * load.episodes
        return seconds


@contextmanager
def started(times: Sequence[float]) -> Iterator[Bench]:
    """Yield an engine for each of ``times``, how long its steps take, with one model's weights."""
    with TemporaryDirectory() as folder:
        tiny_model(0, tied=True, vocab_size=len(TOKENIZER)).save_pretrained(folder)
        spec = EngineSpec(folder, max_model_len=CONTEXT, max_num_seqs=EPISODES)
        own = {"PYTHONPATH": str(ROOT)}
        placement = Placement(env={**engine_env(spec), **own})
        cluster = RayCluster()
        try:
            workers: list[Worker] = [
                cluster.spawn(
                    "tests.bench.slowed:SlowedEngine",
                    *(spec, each),
                    name=f"rollout-engine-{number}",
                    placement=placement,
                )
                for number, each in enumerate(times)
            ]
            environment = cluster.spawn(
                "rlcore.envs.process:EnvironmentProcess",
                SECTION,
                name="environment-0",
                placement=Placement(env=own),
            )
            load_model_directory(Counted(workers, EPISODES), Path(folder))
            yield Bench(workers, environment)
        finally:
            cluster.close()


def measures() -> list[Measure]:
    """Return the figures of this benchmark; about three minutes."""
    draw = random.Random(0)
    draws = sorted(latency_s(draw) for _ in range(100_000))
    found = [
        Measure("tool latency: mean, s", round(mean(draws), 3), least=0.045, most=0.055),
        Measure("tool latency: p99, s", round(draws[int(0.99 * len(draws))], 3), 0.95, 1.05),
    ]
    with started([1.0, SLOWED]) as bench:
        fast, _ = bench.engines
        one = Counted([fast], EPISODES)
        bench.seconds("streaming", one, SEEDS[0])  # the first batches of a process are slower
        pairs = [
            [bench.seconds(schedule, one, seed) for schedule in ("streaming", "lockstep")]
            for seed in SEEDS
        ]
        streamed, in_steps = map(sum, zip(*pairs, strict=True))
        (asked, computed), *_, (all_asked, all_computed) = one.prefilled
        shares = [_shared(bench, seed) for seed in SEEDS]
    alone, both, ideal = zip(*shares, strict=True)
    over = [each / best for each, best in zip(both, ideal, strict=True)]
    return [
        *found,
        Measure("lockstep, s", round(in_steps, 2), note=f"{len(SEEDS)} rollouts, one engine"),
        Measure("streaming, s", round(streamed, 2), note="the same"),
        Measure("streaming over lockstep", round(streamed / in_steps, 3), most=0.5),
        Measure(
            "prefilled of turns 2 to 4",
            round((all_computed - computed) / (all_asked - asked), 3),
            most=0.4,
            note=f"{all_computed - computed} of {all_asked - asked} prompt tokens",
        ),
        Measure(
            f"one engine, and it slowed {SLOWED:g} times, s",
            round(alone[0][0], 2),
            note=f"{alone[0][1]:.2f} slowed; no tool hangs, {IN_FLIGHT} requests in flight",
        ),
        Measure("both, s", round(both[0], 2), note=f"ideal {ideal[0]:.2f}"),
        Measure(
            "both over the ideal share",
            round(median(over), 3),
            most=1.25,
            note=f"{min(over):.3f} to {max(over):.3f}",
        ),
    ]


def _shared(bench: Bench, seed: int) -> tuple[list[float], float, float]:
    """Return the seconds of each engine alone, of both, and of both if they shared ideally."""
    pools = [Counted([each], IN_FLIGHT) for each in bench.engines]
    alone = [bench.seconds("streaming", pool, seed, QUICK_TOOLS) for pool in pools]
    both = Counted(bench.engines, IN_FLIGHT)
    ideal = 1 / sum(1 / each for each in alone)
    return alone, bench.seconds("streaming", both, seed, QUICK_TOOLS), ideal
