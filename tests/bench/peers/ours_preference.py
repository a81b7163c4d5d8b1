"""DPO or KTO by this project, in one process: a JSON line per step on stdout.

    python -m tests.bench.peers.ours_preference JOB

JOB: the JSON of ``tests.bench.preference.Job``.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.supervised.loop import Progress, SupervisedTraining
from rlcore.supervised.preference import PreferenceBatches, reference_table
from schemas.names import PREFERENCE
from tests.bench.peers.processes import STEP
from tests.bench.preference import table_of


def main(job: Mapping[str, Any]) -> None:
    """Train one epoch on the job's rows."""
    settings = {
        "hardware.cluster": "in_process",
        "hardware.device": "cpu",
        "hardware.learner.threads": job["threads"],
        "hardware.learner.micro_batch_tokens": job["micro_batch_tokens"],
        "preference": {
            "algorithm": job["algorithm"],
            "data": {"kind": "gsm8k_solutions"},
            "batch_size": job["batch"],
            "max_tokens": job["max_tokens"],
            "max_steps": len(job["order"]) // job["batch"],
            "checkpoint_every": 1000,
            "optimizer": {"lr": job["lr"], "schedule": {"kind": "constant", "warmup_steps": 0}},
        },
    }
    recipe = load_recipe("smollm2-dpo", settings, directory=RECIPES)
    section = recipe.preference
    assert section is not None, "it was set"
    with open(job["rows_file"]) as file:
        table = table_of([json.loads(line) for line in file])
    with Workers(recipe) as workers:
        learner = workers.learner(
            Path(job["model"]), section.optimizer, name="learner", stage=PREFERENCE
        )
        reference = reference_table(learner, table, section)
        batches = PreferenceBatches(section, table, reference, learner=learner, seed=0)
        store = ArtifactStore(str(Path(job["folder"]) / "store"))
        training = SupervisedTraining(
            batches,
            section,
            learner=learner,
            store=store,
            key="bench",
            lineage=Lineage("bench", "bench"),
        )
        began = [perf_counter()]

        def on_step(progress: Progress) -> None:
            began.append(perf_counter())
            known = {**progress.metrics, "loss": progress.metrics[f"{PREFERENCE}/loss"]}
            print(STEP + json.dumps({**known, "seconds": began[-1] - began[-2]}), flush=True)

        training.run(on_step, log=print)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
