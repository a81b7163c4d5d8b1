"""Episodes of several turns on real vLLM engines: the two schedules, unequal engines, the cache.

64 episodes of 4 turns; a tool answers each turn after a latency that is slept. Most calls are quick
and four in a hundred hang for nearly a second, so that the mean is 50 ms and the 99th percentile
1 s: a mixture of two log-normals, as one cannot have both (its p99 is at most 15 times its mean).
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import log
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from rlcore.cluster.ray_cluster import RayCluster
from rlcore.cluster.types import Placement, Worker
from rlcore.engines.loading import load_model_directory
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import EngineSpec, Generation, Sampling, TurnRequest
from rlcore.engines.vllm_engine import engine_env
from tests.bench.measures import Measure
from tests.rlcore.engines.conftest import ROOT, VOCAB, tiny_model

EPISODES, TURNS = 64, 4
PROMPT, ANSWER, OBSERVATION = 96, 8, 24  # tokens
SAMPLING = Sampling(max_new_tokens=ANSWER)
SEEDS = (0, 1, 2)
SLOWED = 5.0
IN_FLIGHT = 2  # per engine, where engines are unequal: what one has pulled, the other cannot take
HANGS = 0.04  # share of tool calls
START_S, CALL_S = 180.0, 300.0


@dataclass
class Episode:
    name: str
    token_ids: list[int]
    latencies_s: list[float]
    turn: int = 0

    def request(self) -> TurnRequest:
        seed = 1000 * self.turn + int(self.name)
        return TurnRequest(f"{self.name}/{self.turn}", self.token_ids, seed, ANSWER)

    def answer(self, row: Generation) -> float:
        """Take the policy's turn and the tool's answer to it; return that tool's latency in
        seconds."""
        observed = random.Random(f"{self.name} {self.turn}").choices(range(VOCAB), k=OBSERVATION)
        self.token_ids = [*self.token_ids, *row.token_ids, *observed]
        self.turn += 1
        return self.latencies_s[self.turn - 1]


@dataclass
class Lockstep:
    """What ``lockstep`` measured."""

    seconds: float
    prefilled: list[tuple[int, int]] = field(default_factory=list)  # asked, computed after a turn


def latency_s(draw: random.Random) -> float:
    if draw.random() < HANGS:
        return draw.lognormvariate(log(0.85), 0.22)
    return draw.lognormvariate(log(0.014), 0.5)


def episodes(seed: int) -> list[Episode]:
    draw = random.Random(seed)
    return [
        Episode(
            str(number),
            draw.choices(range(VOCAB), k=PROMPT),
            [latency_s(draw) for _ in range(TURNS)],
        )
        for number in range(EPISODES)
    ]


def lockstep(pool: EnginePool, engine: Worker, seed: int) -> Lockstep:
    """Play the episodes turn by turn: the next begins when the last tool has answered."""
    pool.begin()
    going = {episode.name: episode for episode in episodes(seed)}
    found, begun = Lockstep(0.0), perf_counter()
    for _ in range(TURNS):
        share = [episode.request() for episode in going.values()]
        rows = list(pool.turn([share], SAMPLING))
        sleep(max(going[key.partition("/")[0]].answer(row) for key, row in rows))  # side by side
        found.prefilled.append(engine.start("prefilled").result(CALL_S))
    found.seconds = perf_counter() - begun
    return found


def streamed(pool: EnginePool, seed: int, in_flight: int) -> float:
    """Return the seconds of the same episodes, each of which goes on as soon as it can."""
    begun = perf_counter()
    stream = pool.streaming(SAMPLING, in_flight=in_flight)
    going = {episode.name: episode for episode in episodes(seed)}
    answers: list[tuple[float, str]] = []  # when a tool answers, and whom
    stream.submit(episode.request() for episode in going.values())
    while len(stream) or answers:
        due_s = answers[0][0] - perf_counter() if answers else 1.0
        if not len(stream):
            sleep(max(0.0, due_s))
        for key, row in stream.finished(max(0.0, due_s)):
            name = key.partition("/")[0]
            heappush(answers, (perf_counter() + going[name].answer(row), name))
        while answers and answers[0][0] <= perf_counter():
            episode = going[heappop(answers)[1]]
            if episode.turn < TURNS:
                stream.submit([episode.request()])
    assert all(episode.turn == TURNS for episode in going.values())
    return perf_counter() - begun


@contextmanager
def engines(times: Sequence[float]) -> Iterator[list[Worker]]:
    """Yield an engine for each of ``times``, how long its steps take, with one model's weights."""
    with TemporaryDirectory() as folder:
        tiny_model(0, tied=True).save_pretrained(folder)
        spec = EngineSpec(folder, max_model_len=512, max_num_seqs=EPISODES)
        placement = Placement(env={**engine_env(spec), "PYTHONPATH": str(ROOT)})
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
            load_model_directory(pool_of(workers), Path(folder))
            yield workers
        finally:
            cluster.close()


def pool_of(workers: Sequence[Worker]) -> EnginePool:
    return EnginePool(workers, timeout_s=CALL_S, sync_timeout_s=START_S)


def measures() -> list[Measure]:
    """Return the figures of this benchmark; about two minutes."""
    draw = random.Random(0)
    draws = sorted(latency_s(draw) for _ in range(100_000))
    found = [
        Measure("tool latency: mean, s", round(mean(draws), 3), least=0.045, most=0.055),
        Measure("tool latency: p99, s", round(draws[int(0.99 * len(draws))], 3), 0.95, 1.05),
    ]
    with engines([1.0, SLOWED]) as (fast, slow):
        one = pool_of([fast])
        streamed(one, SEEDS[0], EPISODES)  # the first batches of a process are slower
        steps = [lockstep(one, fast, seed) for seed in SEEDS]
        streams = [streamed(one, seed, EPISODES) for seed in SEEDS]
        (asked, computed), (all_asked, all_computed) = steps[0].prefilled[0], steps[0].prefilled[-1]
        alone = [streamed(pool_of([each]), SEEDS[0], IN_FLIGHT) for each in (fast, slow)]
        both = streamed(pool_of([fast, slow]), SEEDS[0], IN_FLIGHT)
    in_steps = sum(each.seconds for each in steps)
    ideal = 1 / sum(1 / each for each in alone)
    return [
        *found,
        Measure("lockstep, s", round(in_steps, 2), note=f"{len(SEEDS)} rollouts, one engine"),
        Measure("streaming, s", round(sum(streams), 2), note="the same"),
        Measure("streaming over lockstep", round(sum(streams) / in_steps, 3), most=0.5),
        Measure(
            "prefilled of turns 2 to 4",
            round((all_computed - computed) / (all_asked - asked), 3),
            most=0.4,
            note=f"{all_computed - computed} of {all_asked - asked} prompt tokens",
        ),
        Measure("one engine, s", round(alone[0], 2), note=f"{IN_FLIGHT} requests in flight"),
        Measure(f"it slowed {SLOWED:g} times, s", round(alone[1], 2)),
        Measure("both, s", round(both, 2), note=f"ideal {ideal:.2f}"),
        Measure("both over the ideal share", round(both / ideal, 3), most=1.25),
    ]
