"""``summary.json``: what people and scripts read of a run that has completed."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect.runtime import flow_run

from rlcore.diagnostics.evidence import Evidence
from rlcore.diagnostics.watch import diagnose
from rlcore.models.files import model_directory
from rlcore.results.folders import SUMMARY
from rlcore.results.metrics import metrics_frame, stage_metrics
from rlcore.results.restarts import restarts_of
from rlcore.results.summary import (
    accuracies,
    episode_figures,
    phase_seconds,
    token_rates,
    worst_gap,
)
from rlcore.results.verdict import verdict
from schemas.artifacts import ArtifactRef
from schemas.names import RECORDS
from schemas.stages import Stage
from tasks.runtime.pipeline import PipelineRun


def write_summary(
    run: PipelineRun, made: Mapping[Stage, ArtifactRef], until: Stage | None = None
) -> dict[str, Any]:
    """End the run's page, write ``summary.json`` into the run's folder, return the summary.

    ``made``: results by stage. Figures of stages after ``until``, where the run ends, are null or
    empty.
    """
    page = run.end_page()
    trained, rates = _trained(run, made)
    measured, rates["evaluate"] = _evaluated(run, made.get(Stage.EVALUATE))
    summary = {
        "recipe": run.recipe.name,
        "seed": run.recipe.seed,
        "flow_run_id": str(flow_run.id),
        "until": until,
        "verdict": _verdict(run, made),
        **measured,
        "reward_model": _reward_model(run, made.get(Stage.REWARD_MODEL)),
        "seconds": {result.stage: round(result.seconds, 2) for result in run.results},
        "cached": [result.stage for result in run.results if result.cached],
        "restarts": [asdict(row) for row in restarts_of(run.store, str(flow_run.id))],
        "tokens_per_s": {phase: round(rate, 1) for phase, rate in rates.items() if rate},
        **trained,
        "export": _exported(run, made.get(Stage.EXPORT)),
        "artifacts": {result.stage: result.ref.uri for result in run.results},
        "ui": flow_run.ui_url,
        "page_seconds": page,
    }
    _write(run.directory, summary)
    return summary


def _trained(
    run: PipelineRun, made: Mapping[Stage, ArtifactRef]
) -> tuple[dict[str, Any], dict[str, float | None]]:
    """Return the summary's figures of RL, and tokens per second."""
    store, sft, policy = run.store, made.get(Stage.SFT), made.get(Stage.RL)
    sft_metrics = None if sft is None else stage_metrics(store, sft.key)
    figures: dict[str, Any] = {
        "iteration_seconds": {},
        "max_logprob_gap": None,
        "iterations": None,
        "best_iteration": None,
        "diagnostics": None,
    }
    if policy is None:
        return figures, dict(token_rates(sft_metrics, metrics_frame("rl", 0, {})))
    trained = store.manifest(policy).metadata
    records = trained.get(RECORDS, policy.key)
    rl_metrics = stage_metrics(store, records, last=run.recipe.rl.iterations)
    diagnosed = diagnose(run.recipe, rl_metrics, Evidence(store, records))
    figures = {
        "iteration_seconds": phase_seconds(rl_metrics),
        "max_logprob_gap": worst_gap(rl_metrics),
        "iterations": trained["iteration"],
        "best_iteration": trained["best_iteration"],
        "diagnostics": [finding.to_json() for finding in diagnosed.findings],
    }
    return figures, dict(token_rates(sft_metrics, rl_metrics))


def _verdict(run: PipelineRun, made: Mapping[Stage, ArtifactRef]) -> str | None:
    """Return what the run came to; None where it ended before RL."""
    policy, evaluation = made.get(Stage.RL), made.get(Stage.EVALUATE)
    if policy is None:
        return None
    names = ("completions", "eval_results")
    tables = [evaluation and run.store.table(evaluation, name) for name in names]
    return verdict(run.store, run.store.manifest(policy), *tables)


def _evaluated(
    run: PipelineRun, evaluation: ArtifactRef | None
) -> tuple[dict[str, Any], float | None]:
    """Return the accuracies of the evaluation and its tokens per second."""
    if evaluation is None:
        return {"accuracy": {}, "sampled_accuracy": {}, "episodes": {}}, None
    eval_results = run.store.table(evaluation, "eval_results")
    figures = {
        "accuracy": accuracies(eval_results),
        "sampled_accuracy": accuracies(eval_results, "sampled/avg@"),
        "episodes": episode_figures(eval_results),
    }
    return figures, run.store.manifest(evaluation).metadata["tokens_per_s"]


def _exported(run: PipelineRun, exported: ArtifactRef | None) -> str | None:
    """Return the directory of the exported model."""
    if exported is None:
        return None
    return str(model_directory(run.store.directory(exported)))


def _write(directory: Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary.json`` into ``directory``, whole or not at all."""
    partial = directory / f".{SUMMARY}"
    partial.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, directory / SUMMARY)


def _reward_model(run: PipelineRun, ref: ArtifactRef | None) -> dict[str, Any] | None:
    """Return the summary's figures of the reward model."""
    if ref is None:
        return None
    accuracy = run.store.table(ref, "pair_accuracy")
    return {
        "pair_accuracy": accuracy.to_dicts(),
        "calibration_error": run.store.manifest(ref).metadata["calibration_error"],
    }
