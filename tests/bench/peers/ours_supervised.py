"""SFT or reward-model training by this project, in one process: a JSON line per step on stdout.

    python -m tests.bench.peers.ours_supervised JOB

JOB: the JSON of ``tests.bench.supervised.Job``.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import polars as pl

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.supervised.loop import Progress, SupervisedTraining, batch_rows
from rlcore.supervised.reward_model import PreferenceBatches
from rlcore.supervised.sft import STAGE, DemonstrationBatches
from schemas.recipe import Recipe
from tests.bench.peers.processes import report_tokens

CONSTANT = {"kind": "constant", "warmup_steps": 0}


def main(job: Mapping[str, Any]) -> None:
    """Train ``job["steps"]`` optimizer steps."""
    with open(job["rows_file"]) as file:
        rows = [json.loads(line) for line in file]
    trained = _sft if job["kind"] == "sft" else _reward_model
    with Workers(_recipe(job)) as workers:
        trained(workers, job, rows)


def _recipe(job: Mapping[str, Any]) -> Recipe:
    settings = {
        "hardware.cluster": "in_process",
        "hardware.rollout.engine": "transformers",
        "hardware.rollout.engines": 1,
        "hardware.device": "cpu",
        "hardware.learner.threads": job["threads"],
        "hardware.learner.micro_batch_tokens": job["micro_batch_tokens"],
        "sft.batch_size": job["rows"],
        "sft.max_steps": None,
        "reward_model.batch_prompts": job["rows"],
        "reward_model.epochs": 1,
    }
    for stage in ("sft", "reward_model"):
        settings[f"{stage}.checkpoint_every"] = job["steps"] + 1
        settings[f"{stage}.optimizer.lr"] = job["lr"]
        settings[f"{stage}.optimizer.schedule"] = CONSTANT
    return load_recipe("quickstart-rlhf", settings, directory=RECIPES)


def _sft(workers: Workers, job: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
    section, seed = workers.recipe.sft, workers.recipe.seed
    learner = workers.learner(Path(job["model"]), section.optimizer, name="learner", stage="sft")
    ids = [row["input_ids"] for row in rows]
    frame = pl.DataFrame(
        {
            "split": ["train"] * len(ids),
            "token_ids": pl.Series(ids, dtype=pl.List(pl.Int32)),
            "loss_mask": [[False, *[True] * (len(row) - 1)] for row in ids],
        }
    )
    batches = DemonstrationBatches(section, frame, seed)
    training = SupervisedTraining(batches, section, learner=learner, **_place(job))

    def tokens(step: int) -> int:
        chosen = batch_rows(len(ids), section.batch_size, step=step, seed=seed, stage=STAGE)
        return sum(len(ids[row]) for row in chosen)

    training.run(_clock(tokens), log=print)


def _reward_model(workers: Workers, job: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
    section, seed = workers.recipe.reward_model, workers.recipe.seed
    assert section is not None, "the recipe trains one"
    learner = workers.learner(
        Path(job["model"]), section.optimizer, name="learner", stage="reward_model", head="value"
    )
    ids = [row[side] for row in rows for side in ("chosen_ids", "rejected_ids")]
    frame = pl.DataFrame(
        {
            "uid": [f"{index // 2:06d}" for index in range(len(ids))],
            "split": ["train"] * len(ids),
            "token_ids": pl.Series(ids, dtype=pl.List(pl.Int32)),
            "prompt_tokens": pl.Series([1] * len(ids), dtype=pl.Int32),
            "rank": pl.Series([1 + index % 2 for index in range(len(ids))], dtype=pl.Int32),
        }
    )
    batches = PreferenceBatches(section, frame, seed)
    training = SupervisedTraining(batches, section, learner=learner, **_place(job))
    training.run(_clock(lambda step: batches.term(step).sequences.num_tokens), log=print)


def _place(job: Mapping[str, Any]) -> dict[str, Any]:
    store = ArtifactStore(str(Path(job["folder"]) / "store"))
    return {"store": store, "key": "bench", "lineage": Lineage("bench", "bench")}


def _clock(tokens: Callable[[int], int]) -> Callable[[Progress], None]:
    """Return what reports each step but the first, which also starts the clock."""
    began: list[float] = []

    def on_step(progress: Progress) -> None:
        now = perf_counter()
        if began:
            report_tokens(now - began[-1], tokens(progress.step - 1))
        began.append(now)

    return on_step


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
