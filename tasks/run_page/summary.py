"""``summary.json``: what people and scripts read of a run that has completed."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import polars as pl
from prefect.runtime import flow_run

from rlcore.models.files import model_directory
from rlcore.plan.machine import fit_of
from rlcore.plan.memory import GIB
from rlcore.report.draw import RL
from rlcore.report.facts import Ending, Facts, gather
from rlcore.results.folders import SUMMARY
from rlcore.results.run import Run
from rlcore.results.summary import (
    accuracies,
    episode_figures,
    lost_time,
    peak_memory_gib,
    worst_gap,
)
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe
from schemas.stages import Stage
from tasks.runtime.stage_run import PipelineRun


def write_summary(
    run: PipelineRun, made: Mapping[Stage, ArtifactRef], until: Stage | None = None
) -> dict[str, Any]:
    """End the run's page, write ``summary.json`` into the run's folder, return the summary.

    ``made``: results by stage. Figures of stages after ``until``, where the run ends, are null or
    empty.
    """
    if run.page is not None:
        run.page.end(Ending("completed"))
    facts = gather(Run(run.directory, run.recipe, run.store), Ending("completed"))
    results, exported = facts.eval_results, made.get(Stage.EXPORT)
    summary = {
        "recipe": run.recipe.name,
        "seed": run.recipe.seed,
        "flow_run_id": str(flow_run.id),
        "until": until,
        "verdict": facts.verdict if RL in made else None,
        "accuracy": {} if results is None else accuracies(results),
        "sampled_accuracy": {} if results is None else accuracies(results, "sampled/avg@"),
        "episodes": {} if results is None else episode_figures(results),
        "reward_model": _reward_model(run, made.get(Stage.REWARD_MODEL)),
        "seconds": {result.stage: round(result.seconds, 2) for result in run.results},
        "cached": [result.stage for result in run.results if result.cached],
        "restarts": [asdict(row) for row in facts.restarts],
        "tokens_per_s": {phase: round(rate, 1) for phase, rate in facts.rates.items() if rate},
        **_trained(facts),
        "export": exported and str(model_directory(run.store.directory(exported))),
        "artifacts": {result.stage: result.ref.uri for result in run.results},
        "ui": flow_run.ui_url,
    }
    partial = run.directory / f".{SUMMARY}"
    partial.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, run.directory / SUMMARY)
    return summary


def _trained(facts: Facts) -> dict[str, Any]:
    """Return the summary's figures of RL; null where the run ended before it."""
    trained, metrics = facts.recorded, facts.metrics.get(RL)
    costs = [row.seconds for row in facts.restarts if row.stage == Stage.RL]
    known = [seconds for seconds in costs if seconds is not None]
    return {
        "iteration_seconds": facts.seconds,
        "lost_time": None if metrics is None else lost_time(metrics, known),
        "memory_gib": None if metrics is None else _memory(facts.recipe, metrics),
        "max_logprob_gap": None if metrics is None else worst_gap(metrics),
        "iterations": trained and trained.count,
        "best_iteration": trained and trained.best,
        "diagnostics": None if metrics is None else [asdict(one) for one in facts.findings],
    }


def _memory(recipe: Recipe, rl: pl.DataFrame) -> dict[str, dict[str, float | None]] | None:
    """Return the most memory that a rank of each trained role has held, and what was planned; None
    in one process, which holds all roles, and where nothing was recorded."""
    measured = peak_memory_gib(rl)
    if recipe.hardware.cluster == "in_process" or not measured:
        return None
    planned = {role: size / GIB for role, size in fit_of(recipe).rank_bytes.items()}
    return {role: {"measured": gib, "planned": planned.get(role)} for role, gib in measured.items()}


def _reward_model(run: PipelineRun, ref: ArtifactRef | None) -> dict[str, Any] | None:
    """Return the summary's figures of the reward model."""
    if ref is None:
        return None
    accuracy = run.store.table(ref, "pair_accuracy")
    return {
        "pair_accuracy": accuracy.to_dicts(),
        "calibration_error": run.store.manifest(ref).metadata["calibration_error"],
    }
