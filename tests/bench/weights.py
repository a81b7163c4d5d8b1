"""How far importance weights spread where the policy that samples is older than the one that
trains: those of tokens (GRPO), of sequences (GSPO) and of sequences against the expectation of
their group (GEPO), each in real runs of the quickstart task from one SFT start.

The weights are those before the first optimizer step of an update, learner over sampler, so that
all of their spread is staleness, and of GEPO also that of a group's own probabilities. The picture
is ``runs/weights.png``; about four minutes on two cores.

    python -m tests.bench weights

Axes: R responses, N policy tokens of a batch.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from flows.paths import RECIPES, ROOT
from rlcore.algorithms.losses import group_log_expectation
from rlcore.data.prepare import prepare
from rlcore.data.read import training_texts
from rlcore.models.base import build_base_model
from rlcore.models.files import MODEL_FOLDER
from rlcore.models.ragged import to_arrays
from rlcore.models.stop_tokens import stops_of
from rlcore.models.tokenizer import load_tokenizer
from rlcore.recipes.load import load_recipe
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import Phases
from rlcore.rl.prompts import PromptRows
from rlcore.rl.records import RecordedIterations
from rlcore.rl.roles import start_workers
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.supervised.loop import SupervisedTraining
from rlcore.supervised.sft import DemonstrationBatches
from schemas.recipe import Recipe
from schemas.stages import Stage
from tests.bench.figure import draw_against
from tests.bench.measures import Measure

FIGURE = ROOT / "runs" / "weights.png"
STALENESS = (1, 2, 4)
# Recipe and its weight against the sampler: of GEPO the ratio itself, of the others a correction.
ALGORITHMS = {"quickstart": "token", "quickstart-gspo": "sequence", "quickstart-gepo": "group"}
ITERATIONS = 20
RUN: Mapping[str, Any] = {
    "hardware.cluster": "in_process",
    "hardware.rollout.engine": "transformers",
    "hardware.rollout.engines": 1,
    "hardware.learner.threads": 1,
    "sft.max_steps": 400,
    "rl.rollout.prompts": 32,
    "rl.validation.every": 1000,
    "rl.validation.stop_at": None,
    "tracking.wandb": False,
}
LINEAGE = Lineage("bench", "bench")


@dataclass(frozen=True, slots=True)
class Curve:
    """Variance of an algorithm's weights by iteration; ``spread``: over the square of their
    mean."""

    algorithm: str
    staleness: int
    variance: list[tuple[int, float]]
    spread: list[float]

    @property
    def mean(self) -> float:
        """The mean variance of the iterations whose rows are as stale as they get."""
        return float(np.mean([value for step, value in self.variance if step > self.staleness]))


def measures() -> list[Measure]:
    """Return the mean variance of each algorithm's weights at each staleness, and draw them."""
    found = curves(STALENESS, {"rl.iterations": ITERATIONS})
    draw(found, FIGURE)
    return [
        Measure(
            f"staleness {curve.staleness}: {curve.algorithm}, variance of weights",
            float(f"{curve.mean:.3g}"),
            note=f"over the square of their mean: {np.mean(curve.spread[curve.staleness :]):.3g}",
            is_absolute=True,
        )
        for curve in found
    ]


def curves(staleness: Sequence[int], overrides: Mapping[str, Any]) -> list[Curve]:
    """Run every algorithm at each staleness from one SFT start; ``overrides``: of all runs."""
    found = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        store = ArtifactStore(str(folder / "store"))
        first = load_recipe(next(iter(ALGORITHMS)), {**RUN, **overrides}, directory=RECIPES)
        policy, prompts = started(first, store, folder)
        for stale in staleness:
            for recipe_name, kind in ALGORITHMS.items():
                over = {**RUN, **overrides, "rl.rollout.max_staleness": stale}
                if kind != "group":
                    over["rl.algorithm.importance_correction.level"] = kind
                recipe = load_recipe(recipe_name, over, directory=RECIPES)
                key = f"{recipe_name}-{stale}"
                trained(recipe, store, key, policy, prompts)
                found.append(_curve(recipe, store, key, kind))
    return found


def started(recipe: Recipe, store: ArtifactStore, folder: Path) -> tuple[Path, pl.DataFrame]:
    """Return the model that SFT ends with, in ``folder``, and the table Prompts."""
    base, policy = folder / "base" / MODEL_FOLDER, folder / "sft"
    base.parent.mkdir()
    build_base_model(recipe.model, base, texts=training_texts(recipe.data, seed=0), seed=0)
    tables = prepare(
        recipe.data,
        tokenizer=load_tokenizer(base),
        seed=recipe.seed,
        sft_max_tokens=recipe.sft.max_tokens,
    ).tables
    batches = DemonstrationBatches(recipe.sft, tables["demonstrations"], recipe.seed)
    with Workers(recipe) as workers:
        learner = workers.learner(base, recipe.sft.optimizer, name="sft-learner", stage=Stage.SFT)
        training = SupervisedTraining(
            batches, recipe.sft, learner=learner, store=store, key="sft", lineage=LINEAGE
        )
        training.run(lambda progress: None, log=print)
        learner.export_hf(policy)
        workers.release(learner)
    return policy, tables["prompts"]


def trained(
    recipe: Recipe, store: ArtifactStore, key: str, policy: Path, prompts: pl.DataFrame
) -> None:
    """Run RL to its end; what it records is below ``key``."""
    tokenizer = load_tokenizer(policy)
    with ExitStack() as stack:
        workers = stack.enter_context(Workers(recipe))
        phases = Phases(
            recipe,
            store=store,
            key=key,
            lineage=LINEAGE,
            prompts=PromptRows.of_frame(prompts),
            ptx=None,
            tokenizer=tokenizer,
            stop_ids=stops_of(policy, tokenizer).ids,
            workers=start_workers(recipe.rl, workers, policy, stack),
            log=print,
        )
        iterate(phases, Steps(), lambda state, metrics: None)


def _curve(recipe: Recipe, store: ArtifactStore, key: str, kind: str) -> Curve:
    recorded, variance, spread = RecordedIterations(store, key, key), [], []
    for number in range(1, recorded.last + 1):
        found = weights(recorded.trained(number))[kind]
        variance.append((number, float(found.var())))
        spread.append(float(found.var() / found.mean() ** 2))
    name = (recipe.rl.preset or recipe.name).upper()
    return Curve(name, recipe.rl.rollout.max_staleness, variance, spread)


def weights(frame: pl.DataFrame) -> dict[str, np.ndarray]:
    """Return the weights of trained rows (``rlcore.rl.batch``) by kind: ``token`` [N] exp(l) with
    l = learner - sampler, ``sequence`` [R] exp(mean of l), ``group`` [R] p / E_q[q]
    (``group_log_expectation``). Rows without a policy token have none."""
    masks = to_arrays(frame["loss_mask"])
    kept = [row for row, mask in enumerate(masks) if mask.any()]
    old, sampler = (
        [array[mask].astype(np.float64) for array, mask in zip(arrays, masks, strict=True)]
        for arrays in (to_arrays(frame["old_logprobs"]), to_arrays(frame["sampler_logprobs"]))
    )
    logp_R = np.array([old[row].mean() for row in kept])
    logq_R = np.array([sampler[row].mean() for row in kept])
    log_expectation_R = group_log_expectation(logq_R, frame["uid"].to_numpy()[kept])
    return {
        "token": np.exp(np.concatenate(old) - np.concatenate(sampler)),
        "sequence": np.exp(logp_R - logq_R),
        "group": np.exp(logp_R - log_expectation_R),
    }


def draw(found: Sequence[Curve], path: Path) -> None:
    """Write the mean variance over staleness, a line per algorithm, as one PNG."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for curve in found:
        lines.setdefault(curve.algorithm, []).append((curve.staleness, curve.mean))
    draw_against(lines, path, x_label="staleness, updates", y_label="variance of weights")
