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
from rlcore.results.folders import SUMMARY, report_folder
from rlcore.results.metrics import metrics_frame, stage_metrics
from rlcore.results.summary import (
    accuracies,
    phase_seconds,
    proxy_and_truth,
    token_rates,
    worst_gap,
)
from schemas.artifacts import ArtifactRef
from schemas.names import RECORDS
from schemas.stages import Stage
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
    run: PipelineRun, made: Mapping[Stage, ArtifactRef], until: Stage | None = None
) -> dict[str, Any]:
    """Write ``summary.json`` into the run's folder, fill the run page, return the summary.

    ``made``: results by stage. Figures of stages after ``until``, where the run ends, are null or
    empty.
    """
    trained, rates = _trained(run, made)
    measured, rates["evaluate"] = _evaluated(run, made.get(Stage.EVALUATE))
    summary = {
        "recipe": run.recipe.name,
        "seed": run.recipe.seed,
        "flow_run_id": str(flow_run.id),
        "until": until,
        **measured,
        "reward_model": _reward_model(run, made.get(Stage.REWARD_MODEL)),
        "seconds": {result.stage: round(result.seconds, 2) for result in run.results},
        "cached": [result.stage for result in run.results if result.cached],
        "tokens_per_s": {phase: round(rate, 1) for phase, rate in rates.items() if rate},
        **trained,
        "export": _exported(run, made.get(Stage.EXPORT)),
        "artifacts": {result.stage: result.ref.uri for result in run.results},
        "ui": flow_run.ui_url,
    }
    _write(run.directory, summary)
    _publish_lineage(run)
    return summary


def _trained(
    run: PipelineRun, made: Mapping[Stage, ArtifactRef]
) -> tuple[dict[str, Any], dict[str, float | None]]:
    """Put the curves of SFT and RL on the run page; return the summary's figures of RL, and tokens
    per second."""
    store, sft, policy = run.store, made.get(Stage.SFT), made.get(Stage.RL)
    sft_metrics = None if sft is None else stage_metrics(store, sft.key)
    if sft_metrics is not None:
        publish_metrics("sft", sft_metrics, report_folder(run.directory))
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
    rl_metrics = stage_metrics(store, records)
    publish_metrics("rl", rl_metrics, report_folder(run.directory))
    diagnosed = diagnose(run.recipe, rl_metrics, Evidence(store, records))
    publish_diagnostics(diagnosed.findings, diagnosed.checks)
    if learns_from_a_model(run.recipe) and (curves := proxy_and_truth(rl_metrics)) is not None:
        publish_proxy(curves, report_folder(run.directory))
    figures = {
        "iteration_seconds": phase_seconds(rl_metrics),
        "max_logprob_gap": worst_gap(rl_metrics),
        "iterations": trained["iteration"],
        "best_iteration": trained["best_iteration"],
        "diagnostics": [finding.to_json() for finding in diagnosed.findings],
    }
    return figures, dict(token_rates(sft_metrics, rl_metrics))


def _evaluated(
    run: PipelineRun, evaluation: ArtifactRef | None
) -> tuple[dict[str, Any], float | None]:
    """Put the evaluation on the run page; return its accuracies and its tokens per second."""
    if evaluation is None:
        return {"accuracy": {}, "sampled_accuracy": {}}, None
    eval_results = run.store.table(evaluation, "eval_results")
    publish_evaluation(eval_results)
    publish_completions(
        run.store.table(evaluation, "completions"), limit=run.recipe.evaluate.completions_shown
    )
    figures = {
        "accuracy": accuracies(eval_results),
        "sampled_accuracy": accuracies(eval_results, "sampled/avg@"),
    }
    return figures, run.store.manifest(evaluation).metadata["tokens_per_s"]


def _exported(run: PipelineRun, exported: ArtifactRef | None) -> str | None:
    """Put the export on the run page; return the directory of the model."""
    if exported is None:
        return None
    publish_export(exported.uri)
    return str(model_directory(run.store.directory(exported)))


def _write(directory: Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary.json`` into ``directory``, whole or not at all."""
    partial = directory / f".{SUMMARY}"
    partial.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, directory / SUMMARY)


def _reward_model(run: PipelineRun, ref: ArtifactRef | None) -> dict[str, Any] | None:
    """Put the reward model on the run page; return the summary's figures of it."""
    if ref is None:
        return None
    accuracy = run.store.table(ref, "pair_accuracy")
    metrics = stage_metrics(run.store, ref.key)
    publish_metrics("reward_model", metrics, report_folder(run.directory))
    publish_reward_model(accuracy, run.store.table(ref, "calibration"))
    return {
        "pair_accuracy": accuracy.to_dicts(),
        "calibration_error": run.store.manifest(ref).metadata["calibration_error"],
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
