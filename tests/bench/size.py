"""What the pipeline itself does in an iteration of up to 10,000 prompts x 16: the real phases,
checks and store, with learners, engines and rewards that answer at once and hold no model.

A row has 128 tokens of prompt and 128 to 384 of answer. Each size runs in a process of its own, of
which the peak is told: a run's flow holds the same rows. Prefect is not there: it is called six
times an iteration, whatever its size.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import polars as pl

from flows.paths import RECIPES
from rlcore.cluster.in_process import InProcessWorker
from rlcore.data.read import training_texts
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Generation, RolloutEngine, Sampling, TurnRequest
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import Term, TokenScores, UpdateRequest, UpdateResult
from rlcore.models.base import build_base_model
from rlcore.models.packing import Sequences
from rlcore.models.tokenizer import load_tokenizer
from rlcore.models.weight_digest import WeightStamp, WeightUpdate
from rlcore.recipes.load import load_recipe
from rlcore.results.queries import query
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import Phases
from rlcore.rl.prompts import PromptRows
from rlcore.rl.roles import RLWorkers
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.outcomes import FinishReason
from schemas.table_list import MESSAGES
from tests.bench.measures import Measure
from tests.bench.peers.processes import STEP, ours

SIZES = (1_250, 2_500, 5_000, 10_000)
SAMPLES, PROMPT, SHORTEST, LONGEST = 16, 128, 128, 384
ITERATIONS = 2
LINEAR = 1.25  # growth of a phase over that of the prompts, from the middle of the sizes to the end
SECONDS = 1.0  # a phase that takes less is not compared


def measures() -> list[Measure]:
    """Return seconds of each phase at each size, their growth, bytes, files and peak; about a
    quarter of an hour."""
    found = {size: ours("tests.bench.size", {"prompts": size}).steps[-1] for size in SIZES}
    largest, middle = found[SIZES[-1]], found[SIZES[-3]]
    times = SIZES[-1] / SIZES[-3]
    said = []
    for phase, seconds in sorted(largest["phases"].items(), key=lambda item: -item[1]):
        shown = ", ".join(f"{size:,}: {found[size]['phases'][phase]:.2f}" for size in SIZES)
        said.append(Measure(f"{phase}, s at {SIZES[-1]:,} prompts", round(seconds, 2), note=shown))
        if seconds >= SECONDS:
            growth = seconds / max(middle["phases"][phase], 0.1) / times
            name = f"{phase}, growth over that of the prompts"
            said.append(Measure(name, round(growth, 2), most=LINEAR))
    peaks = ", ".join(f"{size:,}: {found[size]['peak_gib']:.2f}" for size in SIZES)
    return [
        *said,
        Measure("peak of the flow, GiB", largest["peak_gib"], note=peaks),
        Measure("bytes an iteration, MiB", largest["mib"]),
        Measure("files an iteration", largest["files"]),
        Measure("SQL over one iteration, s", largest["sql_s"]),
    ]


class Engine(RolloutEngine):
    """Answers with random tokens."""

    def __init__(self) -> None:
        self._stamp = WeightStamp(0, "")
        self._draw = np.random.default_rng(0)

    def begin(self) -> None:
        """Nothing is kept."""

    def generate(self, requests: Sequence[TurnRequest], sampling: Sampling) -> list[Generation]:
        del sampling
        lengths = self._draw.integers(SHORTEST, LONGEST + 1, len(requests))
        rows = []
        for length in lengths.tolist():
            ids = self._draw.integers(260, 500, length).tolist()
            logprobs = (-self._draw.exponential(0.3, length).clip(0, 9)).tolist()
            rows.append(Generation(ids, logprobs, FinishReason.STOP, self._stamp))
        return rows

    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        self._stamp = update.stamp
        return self._stamp

    def probe(self, token_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[0.0] * (len(ids) - 1) for ids in token_ids]

    def stamp(self) -> WeightStamp:
        return self._stamp

    def close(self) -> None:
        """Nothing is held."""


class Learner:
    """Scores every token 0 and learns nothing."""

    def __init__(self) -> None:
        self._version = 0

    def packing_warning(self) -> None:
        return None

    def peak_flops(self) -> None:
        return None

    def logprobs(self, sequences: Sequences, temperature: float = 1.0, **asked: Any) -> TokenScores:
        del temperature
        zeros = [np.zeros(len(ids), np.float32) for ids in sequences.token_ids]
        return TokenScores(zeros, zeros if asked.get("entropy") else [], [])

    def step(self, terms: Sequence[Term], lr: float) -> dict[str, float]:
        del terms, lr
        return {}

    def update(self, request: UpdateRequest) -> UpdateResult:
        self._version = request.version + 1
        steps = [{"actor/grad_norm": 1.0} for _ in request.mini_batches]
        return UpdateResult(self._version, {"actor/grad_norm": 1.0}, steps)

    def stamp(self) -> WeightStamp:
        return WeightStamp(self._version, f"{self._version:064x}")

    def publish(self, kept: int = 1) -> WeightUpdate:
        del kept
        return WeightUpdate(self.stamp(), "", {})

    def save(self, directory: str) -> None:
        Path(directory).mkdir(parents=True)
        (Path(directory) / "version").write_text(str(self._version))

    def load(self, directory: str) -> None:
        self._version = int((Path(directory) / "version").read_text())


class Rewards:
    """Pays by the length of an answer."""

    def start(self, row: RewardRow) -> None:
        """Nothing is begun."""

    def score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        return [
            Reward(row.trajectory_id, "ok", float(row.num_tokens % 2), row.num_tokens % 2 == 1)
            for row in rows
        ]


def main(job: dict[str, Any]) -> None:
    """Run the iterations of one size; report the last one."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        recipe = load_recipe("quickstart", _settings(job["prompts"], folder), directory=RECIPES)
        build_base_model(
            recipe.model, folder / "model", texts=training_texts(recipe.data, seed=0), seed=0
        )
        tokenizer = load_tokenizer(folder / "model")
        store = ArtifactStore(folder / "store")
        phases = Phases(
            recipe,
            store=store,
            key="run",
            lineage=Lineage("recipe", "code"),
            prompts=PromptRows.of_frame(_prompts(job["prompts"])),
            ptx=None,
            tokenizer=tokenizer,
            stop_ids=(1,),
            workers=RLWorkers(
                learner=LearnerPool([InProcessWorker.of("learner", Learner())]),
                engines=EnginePool(
                    [InProcessWorker.of("engine", Engine())], timeout_s=3600, sync_timeout_s=60
                ),
                rewards=Rewards(),
            ),
            log=lambda line: None,
        )
        seconds: list[dict[str, float]] = []

        def report(state: Any, metrics: dict[str, float]) -> None:
            del state
            seconds.append({k: v for k, v in metrics.items() if k.startswith("timing_s/")})

        iterate(phases, Steps(), report)
        made = [p for p in folder.glob(f"store/*/run/{ITERATIONS:06d}/**/*") if p.is_file()]
        began = perf_counter()
        query(store, "select avg(score), count(*) from trajectories where iteration = 2")
        said = {
            "phases": {k.removeprefix("timing_s/"): v for k, v in seconds[-1].items()},
            "peak_gib": round(getrusage(RUSAGE_SELF).ru_maxrss / 2**20, 2),
            "mib": round(sum(path.stat().st_size for path in made) / 2**20, 1),
            "files": len(made),
            "sql_s": round(perf_counter() - began, 2),
        }
        print(STEP + json.dumps(said), flush=True)


def _settings(prompts: int, folder: Path) -> dict[str, Any]:
    longest = PROMPT + LONGEST
    return {
        "store": str(folder / "store"),
        "model.from_scratch.max_position_embeddings": longest,
        "model.max_tokens": longest,
        "data.max_prompt_tokens": PROMPT,
        "rl.iterations": ITERATIONS,
        "rl.rollout.prompts": prompts,
        "rl.rollout.samples": SAMPLES,
        "rl.rollout.max_new_tokens": LONGEST,
        "rl.update.mini_batches": 1,
        "rl.validation.every": ITERATIONS,
        "rl.validation.prompts": 8,
        "rl.validation.stop_at": None,
        "rl.max_logprob_gap": 10.0,
        "hardware.cluster": "in_process",
        "hardware.rollout.engine": "transformers",
        "hardware.learner.micro_batch_tokens": 8192,
    }


def _prompts(count: int) -> pl.DataFrame:
    """Return the Prompts table of an epoch, and some rows to validate on."""
    draw = np.random.default_rng(1)
    splits = ["train"] * count * ITERATIONS + ["validation"] * 8
    return pl.DataFrame(
        {
            "uid": [f"{row:08d}" for row in range(len(splits))],
            "split": splits,
            "subset": splits,
            "ability": [""] * len(splits),
            "reward_style": ["rule"] * len(splits),
            "data_source": ["size"] * len(splits),
            "prompt": pl.Series([[{"role": "user", "content": "x"}]] * len(splits), dtype=MESSAGES),
            "prompt_ids": pl.Series(
                draw.integers(260, 500, (len(splits), PROMPT)).tolist(), dtype=pl.List(pl.Int32)
            ),
            "ground_truth": ["1"] * len(splits),
            "extra_info": ["{}"] * len(splits),
        }
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
