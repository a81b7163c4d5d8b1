"""What the run page shows; at the end of a run also ``summary.json``."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.runtime import flow_run

from rlcore.data.datasheet import datasheet
from rlcore.diagnostics.evidence import Evidence
from rlcore.diagnostics.measures import learns_from_a_model
from rlcore.diagnostics.watch import diagnose
from rlcore.models.files import model_directory
from rlcore.results.folders import SUMMARY
from rlcore.results.metrics import stage_metrics
from rlcore.results.summary import (
    accuracies,
    phase_seconds,
    proxy_and_truth,
    token_rates,
    worst_gap,
)
from schemas.artifacts import ArtifactRef
from schemas.names import RECORDS
from tasks.run_page.artifacts import (
    lineage_row,
    publish_completions,
    publish_datasheet,
    publish_diagnostics,
    publish_evaluation,
    publish_export,
    publish_lineage,
    publish_metrics,
    publish_proxy,
    publish_reward_model,
)
from tasks.runtime.pipeline import PipelineRun


def publish_data(run: PipelineRun, dataset: ArtifactRef) -> None:
    """Put the datasheet of the dataset, new or from cache, on the run page."""
    publish_datasheet(datasheet(run.store.manifest(dataset).metadata["counts"]))


def publish_summary(
    run: PipelineRun,
    *,
    warm: ArtifactRef,
    policy: ArtifactRef,
    evaluation: ArtifactRef,
    exported: ArtifactRef,
    reward_model: ArtifactRef | None = None,
) -> dict[str, Any]:
    """Write ``summary.json`` into the run's folder, fill the run page, return the summary."""
    store = run.store
    sft_metrics = stage_metrics(store, warm.key) if warm.kind == "policy" else None
    trained = store.manifest(policy).metadata
    records = trained.get(RECORDS, policy.key)
    rl_metrics = stage_metrics(store, records)
    eval_results = store.table(evaluation, "eval_results")
    directory = model_directory(store.directory(exported))
    rates = token_rates(sft_metrics, rl_metrics)
    rates["evaluate"] = store.manifest(evaluation).metadata["tokens_per_s"]
    diagnosed = diagnose(run.recipe, rl_metrics, Evidence(store, records))
    reward_model_figures = None if reward_model is None else _reward_model(run, reward_model)
    ui_url = flow_run.ui_url
    summary = {
        "recipe": run.recipe.name,
        "seed": run.recipe.seed,
        "flow_run_id": str(flow_run.id),
        "accuracy": accuracies(eval_results),
        "sampled_accuracy": accuracies(eval_results, "sampled/avg@"),
        "reward_model": reward_model_figures,
        "seconds": {result.stage: round(result.seconds, 2) for result in run.results},
        "cached": [result.stage for result in run.results if result.cached],
        "tokens_per_s": {phase: round(rate, 1) for phase, rate in rates.items()},
        "iteration_seconds": phase_seconds(rl_metrics),
        "max_logprob_gap": worst_gap(rl_metrics),
        "iterations": trained["iteration"],
        "best_iteration": trained["best_iteration"],
        "diagnostics": [finding.to_json() for finding in diagnosed.findings],
        "export": str(directory),
        "artifacts": {result.stage: result.ref.uri for result in run.results},
        "ui": ui_url,
    }
    _write(run.directory, summary)
    _publish_lineage(run)
    if sft_metrics is not None:
        publish_metrics("sft", sft_metrics)
    if reward_model is not None:
        publish_metrics("reward_model", stage_metrics(store, reward_model.key))
        publish_reward_model(
            store.table(reward_model, "pair_accuracy"), store.table(reward_model, "calibration")
        )
    publish_metrics("rl", rl_metrics)
    publish_diagnostics(diagnosed.findings, diagnosed.checks)
    if learns_from_a_model(run.recipe) and (curves := proxy_and_truth(rl_metrics)) is not None:
        publish_proxy(curves)
    publish_evaluation(eval_results)
    publish_completions(
        store.table(evaluation, "completions"), limit=run.recipe.evaluate.completions_shown
    )
    publish_export(exported.uri)
    return summary


def _write(directory: Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary.json`` into ``directory``, whole or not at all."""
    partial = directory / f".{SUMMARY}"
    partial.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, directory / SUMMARY)


def _reward_model(run: PipelineRun, ref: ArtifactRef) -> dict[str, Any]:
    metadata = run.store.manifest(ref).metadata
    return {
        "pair_accuracy": run.store.table(ref, "pair_accuracy").to_dicts(),
        "calibration_error": metadata["calibration_error"],
    }


def _publish_lineage(run: PipelineRun) -> None:
    rows = []
    for result in run.results:
        manifest = run.store.manifest(result.ref)
        rows.append(
            lineage_row(
                result.stage,
                result.ref,
                cached=result.cached,
                seconds=result.seconds,
                parents=manifest.parents,
                producer=manifest.producer,
            )
        )
    publish_lineage(rows)
