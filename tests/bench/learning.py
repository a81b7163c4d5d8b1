"""The recipe ``smollm2-quickstart`` beside TRL: a real model, the same prompts in the same order,
batch, steps, sampling and optimizer; both evaluated by this project on the same held-out prompts.

This project's side is ``rl-pipeline run``, whose training is read from the store where it is done,
and ``rl-pipeline export --iteration``; ``rl-pipeline models smollm2`` must have written the model.
About an hour a seed on two cores, of which TRL takes most.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from flows.paths import RECIPES, ROOT
from rlcore.recipes.load import load_recipe
from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError
from schemas.recipe import Recipe
from tests.bench.measures import Measure
from tests.bench.peers.processes import Timed, by_trl, importing

RECIPE = "smollm2-quickstart"
SEEDS = (0,)
WARMUP = 2  # iterations that are not timed
NOISE = 0.15  # of held-out accuracy between two trainings of one recipe that differ by their seed


@dataclass(frozen=True, slots=True)
class Job:
    """What TRL does; an iteration samples ``prompts`` x ``samples`` responses and makes
    ``mini_batches`` optimizer steps."""

    model: str
    prompts_file: str
    folder: str
    seed: int
    iterations: int
    prompts: int
    samples: int
    mini_batches: int
    new_tokens: int
    temperature: float
    lr: float
    betas: tuple[float, float]
    weight_decay: float
    grad_clip: float
    warmup_steps: int
    threads: int


def measures() -> list[Measure]:
    """Return held-out accuracy before and after on both sides, and seconds an iteration."""
    found = []
    with TemporaryDirectory() as folder:
        for seed in SEEDS:
            found += _of_seed(seed, Path(folder) / str(seed))
    return found


def _of_seed(seed: int, folder: Path) -> list[Measure]:
    recipe = load_recipe(RECIPE, {"seed": seed}, directory=RECIPES)
    model = ROOT / str(recipe.model.path)
    if not model.is_dir():
        raise UserError(f"{model} is not there; rl-pipeline models smollm2 writes it")
    said = _program("run", RECIPE, "-o", f"seed={seed}")
    store = ArtifactStore(str(ROOT / recipe.store))
    run = _newest_run(store, seed, said)
    folder.mkdir()
    job = _job(recipe, model, _prompts(store, run["records_key"], folder), folder)
    theirs = by_trl("trl_learning.py", asdict(job))
    ours = str(folder / "ours")
    _program("export", run["run"], "--iteration", str(recipe.rl.iterations), "--out", ours)
    models = {"base": str(model), "ours": ours, "TRL": job.folder}
    accuracy = _accuracy(models, seed)
    seconds = query(
        store,
        f"select value from metrics where records_key = '{run['records_key']}' and stage = 'rl'"
        " and name = 'timing_s/step' order by step",
    )["value"].to_list()
    return [*_learning(seed, accuracy), *_speed(seed, seconds, theirs)]


def _learning(seed: int, accuracy: Mapping[str, float]) -> list[Measure]:
    apart = abs(accuracy["ours"] - accuracy["TRL"])
    return [
        *(
            Measure(f"seed {seed}: {name}, held-out accuracy", round(value, 3), is_absolute=True)
            for name, value in accuracy.items()
        ),
        Measure(f"seed {seed}: ours and TRL apart", round(apart, 3), most=NOISE, is_absolute=True),
    ]


def _speed(seed: int, ours: Sequence[float], theirs: Timed) -> list[Measure]:
    # The quartile of the fastest: other work on the machine comes and goes within such a time.
    mine = quantiles(ours[WARMUP:], n=4)[0]
    other = quantiles([step["seconds"] for step in theirs.steps[WARMUP:]], n=4)[0]
    return [
        Measure(f"seed {seed}: ours, s an iteration", round(mine, 2), is_absolute=True),
        Measure(f"seed {seed}: TRL, s an iteration", round(other, 2), is_absolute=True),
        Measure(
            f"seed {seed}: TRL's time over ours",
            round(other / mine, 2),
            least=1.0,
            is_speedup=True,
        ),
    ]


def _job(recipe: Recipe, model: Path, prompts_file: Path, folder: Path) -> Job:
    rl, optimizer = recipe.rl, recipe.rl.update.optimizer
    return Job(
        model=str(model),
        prompts_file=str(prompts_file),
        folder=str(folder / "trl"),
        seed=recipe.seed,
        iterations=rl.iterations,
        prompts=rl.rollout.prompts,
        samples=rl.rollout.samples,
        mini_batches=rl.update.mini_batches,
        new_tokens=rl.rollout.max_new_tokens,
        temperature=rl.rollout.temperature,
        lr=optimizer.lr,
        betas=optimizer.betas,
        weight_decay=optimizer.weight_decay,
        grad_clip=optimizer.grad_clip,
        warmup_steps=optimizer.schedule.warmup_steps or 0,
        threads=recipe.hardware.learner.threads,
    )


def _prompts(store: ArtifactStore, records_key: str, folder: Path) -> Path:
    """Write the prompts of each iteration in the order in which the run sampled them."""
    rows = query(
        store,
        "select iteration, min(trajectory_id) as first, any_value(p.prompt) as prompt,"
        " any_value(p.ground_truth) as truth from trajectories t join (select distinct on (uid)"
        " uid, prompt, ground_truth from prompts) p using (uid)"
        f" where t.records_key = '{records_key}' group by iteration, uid order by iteration, first",
    )
    path = folder / "prompts.jsonl"
    rows.select(pl.col("prompt"), pl.col("truth")).write_ndjson(path)
    return path


def _newest_run(store: ArtifactStore, seed: int, said: str) -> Mapping[str, Any]:
    rows = query(
        store,
        f"select run, records_key from runs where recipe = '{RECIPE}' and seed = {seed}"
        " and state = 'completed' order by began desc limit 1",
    )
    if rows.is_empty():
        raise UserError(f"{RECIPE} seed {seed} did not complete:\n{said[-2000:]}")
    return rows.row(0, named=True)


def _accuracy(models: Mapping[str, str], seed: int) -> dict[str, float]:
    said = _program("evaluate", *models.values(), RECIPE, "-o", f"seed={seed}", "--format", "json")
    found = {
        row["model"]: row["value"]
        for row in json.loads(said)
        if (row["metric"], row["data_source"]) == ("greedy/acc", "all")
    }
    return {name: found[model] for name, model in models.items()}


def _program(*arguments: str) -> str:
    program = Path(sys.executable).parent / "rl-pipeline"
    done = subprocess.run(
        [program, *arguments],
        cwd=ROOT,
        env=importing({}),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"rl-pipeline {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout
