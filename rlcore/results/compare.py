"""Runs side by side: in what they differ, their metrics, and their evaluations prompt by prompt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import polars as pl

from rlcore.recipes.text import leaves, value_text
from rlcore.results.paired import METRICS, Condition, Difference, difference, prompt_values
from rlcore.results.run import Run
from schemas.artifacts import Manifest
from schemas.errors import UserError

NAMES = ("name", "description")  # of a recipe: they say nothing about what is computed
DIGITS = 12  # of a digest that is shown
READ = ("base_model", "prepare_data")  # stages whose results are what a run starts from


@dataclass(frozen=True, slots=True)
class RunDifference:
    """One thing that runs do not have in common; ``values``: one a run, None where it has none."""

    part: Literal["recipe", "code", "data"]
    name: str
    values: tuple[str | None, ...]


def differing_settings(runs: Sequence[Run]) -> list[RunDifference]:
    """Return in what ``runs`` differ: recipe, then code, then data. Raises ArtifactError where a
    result of theirs is damaged, UserError for a run without records."""
    manifests = [_manifests(run) for run in runs]
    stages = list(dict.fromkeys(stage for made in manifests for stage in made))
    found = recipe_differences([run.recipe.model_dump(mode="json") for run in runs])
    digests: list[tuple[Literal["code", "data"], str, str]] = [
        *(("code", stage, "code_fingerprint") for stage in stages),
        *(("data", stage, "sha256") for stage in READ if stage in stages),
    ]
    for part, stage, digest in digests:
        values = tuple(
            getattr(made[stage], digest)[:DIGITS] if stage in made else None for made in manifests
        )
        if len({*values} - {None}) > 1:  # a stage that a run has not come to is no difference
            found.append(RunDifference(part, stage, values))
    inputs = [_inputs(run, made) for run, made in zip(runs, manifests, strict=True)]
    for url in dict.fromkeys(url for read in inputs for url in read):
        values = tuple(read.get(url) for read in inputs)
        if len(set(values)) > 1:
            found.append(RunDifference("data", url, values))
    return found


def recipe_differences(recipes: Sequence[Mapping[str, Any]]) -> list[RunDifference]:
    """Return the dotted keys whose values are not the same in all ``recipes``, in their order."""
    flat = [{key: value_text(value) for key, value in leaves(recipe)} for recipe in recipes]
    keys = dict.fromkeys(key for recipe in flat for key in recipe if key not in NAMES)
    rows = [RunDifference("recipe", key, tuple(recipe.get(key) for recipe in flat)) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


def _manifests(run: Run) -> dict[str, Manifest]:
    """Return the manifests of the results that the run has, by stage."""
    return {
        stage: manifest
        for stage, row in run.stages.items()
        if row.sha256 is not None
        and (manifest := run.store.peek(row.result_kind, row.result_key)) is not None
    }


def _inputs(run: Run, made: Mapping[str, Manifest]) -> dict[str, str]:
    """Return the digest of each file or dataset that the run's stages read, by its URL."""
    read: dict[str, str] = {}
    for stage, manifest in made.items():
        if "inputs" in manifest.schema_versions and (ref := run.result(stage)) is not None:
            rows = run.store.table(ref, "inputs")
            read |= {row["url"]: row["digest"][:DIGITS] for row in rows.iter_rows(named=True)}
    return read


_STEPS = ""  # instead of a metric: the steps that there are

Rows = list[dict[str, Any]]
Section = tuple[str, Rows]


def _paired_row(pair: Difference) -> dict[str, Any]:
    return {
        "metric": pair.metric,
        "first": pair.first,
        "this": pair.second,
        "difference": pair.value,
        "95 % low": pair.low,
        "95 % high": pair.high,
        "prompts": pair.pairs,
        "higher": pair.higher,
        "lower": pair.lower,
        "unmatched": pair.unmatched_first + pair.unmatched_second,
    }


@dataclass(frozen=True, slots=True)
class Comparison:
    """What runs have in common and what not; each is paired with the first of ``runs``."""

    runs: tuple[str, ...]
    settings: list[RunDifference]
    figures: dict[str, tuple[float | None, ...]]  # of training: one per run, None where it has none
    pairs: dict[str, list[Difference]]  # by run, but the first
    notes: list[str]
    checkpoint: str  # of the first run, whose evaluation is compared: what is exported

    def failures(self, conditions: Sequence[Condition]) -> list[tuple[Condition, str, Difference]]:
        """Return each condition that holds, with the run and its difference from the first.

        Raises UserError where a run cannot be compared by a condition's metric: whether it holds is
        then not known.
        """
        found = []
        for condition in conditions:
            for run in self.runs[1:]:
                by_metric = {pair.metric: pair for pair in self.pairs[run]}
                if condition.metric not in by_metric:
                    raise UserError(
                        f"--fail-if '{condition.text}': {condition.metric} of {run} and"
                        f" {self.runs[0]} cannot be compared: {'; '.join(self.notes)}"
                    )
                if condition.holds(by_metric[condition.metric]):
                    found.append((condition, run, by_metric[condition.metric]))
        return found

    def sections(self) -> list[Section]:
        """Return titled tables for people; those without rows are left out."""
        settings = {
            row.name if row.part == "recipe" else f"{row.part} of {row.name}": row.values
            for row in self.settings
        }
        first, of = self.runs[0], f"Evaluation of '{self.checkpoint}'"
        paired = [
            (f"{of}: {run} against {first}, on the prompts of both", rows)
            for run in self.runs[1:]
            for rows in [[_paired_row(pair) for pair in self.pairs[run]]]
        ]
        titled = [
            ("What differs", _table("key", self.runs, settings)),
            ("Training", _table("figure", self.runs, self.figures)),
            *paired,
            ("Notes", [{"note": note} for note in self.notes]),
        ]
        return [(title, rows) for title, rows in titled if rows]


def compare(runs: Sequence[Run]) -> Comparison:
    """Return how ``runs`` differ; the first is what the others are compared with.

    Raises UserError unless there are two or more different ones, or where one has no records,
    ArtifactError where something of theirs is damaged.
    """
    names = tuple(run.name for run in runs)
    if len(set(names)) < len(names) or len(names) < 2:
        raise UserError(f"two or more different runs can be compared, not {', '.join(names)}")
    settings = differing_settings(runs)
    frames = [{stage: _metrics(run, stage) for stage in ("rl", "sft")} for run in runs]
    figures = {
        name: tuple(_figure(frame[stage], metric, of) for frame in frames)
        for name, (stage, metric, of) in _FIGURES.items()
    }
    pairs, notes = _paired(runs)
    if any(row.part == "recipe" and row.name.startswith("reward.functions") for row in settings):
        notes.append("the reward functions differ, so accuracy and score are not of one measure")
    return Comparison(
        names,
        settings,
        {name: values for name, values in figures.items() if values.count(None) < len(values)},
        pairs,
        notes,
        runs[0].recipe.policies[-1],
    )


def _table(head: str, runs: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> Rows:
    """Return a row per name of ``columns``, or per run where there are more of these than of names,
    and more than the two that are read side by side."""
    if columns and len(runs) > max(2, len(columns)):
        return [
            {"run": run} | {name: values[index] for name, values in columns.items()}
            for index, run in enumerate(runs)
        ]
    return [{head: name} | dict(zip(runs, values, strict=True)) for name, values in columns.items()]


def _metrics(run: Run, stage: str) -> pl.DataFrame | None:
    """Return step, name and value of a stage's metrics, None where the run has not come to it."""
    if stage not in run.stages:
        return None
    return run.metrics(stage).drop_nulls("value").unique(["step", "name"], keep="last")


def _figure(frame: pl.DataFrame | None, metric: str, of: Callable[..., float]) -> float | None:
    """Return what ``of`` computes of the values of ``metric`` [steps], in the order of steps."""
    if frame is None:
        return None
    if metric == _STEPS:
        values = frame["step"].to_numpy()
    else:
        values = frame.filter(pl.col("name") == metric).sort("step")["value"].to_numpy()
    return float(of(values)) if len(values) else None


_last = itemgetter(-1)  # of values by step
# By figure: the stage's metric, and what of its values.
_FIGURES: dict[str, tuple[str, str, Callable[..., float]]] = {
    "validation accuracy, best": ("rl", "val/accuracy", np.max),
    "validation accuracy, last": ("rl", "val/accuracy", _last),
    "validation score, best": ("rl", "val/score", np.max),
    "validation score, last": ("rl", "val/score", _last),
    "reward, last": ("rl", "critic/score/mean", _last),
    "response length, last": ("rl", "response_length/mean", _last),
    "entropy, last": ("rl", "actor/entropy", _last),
    "KL to the reference, last": ("rl", "actor/ref_kl", _last),
    "log-prob gap, most": ("rl", "training/rollout_logprobs_gap_max", np.max),
    "SFT loss, last": ("sft", "sft/loss", _last),
    "iterations": ("rl", _STEPS, np.max),
    "RL seconds": ("rl", "timing_s/step", np.sum),
    "RL tokens/s, median": ("rl", "perf/total_tokens_per_s", np.median),
    "RL tokens/s per GPU, median": ("rl", "perf/throughput", np.median),
}


def _paired(runs: Sequence[Run]) -> tuple[dict[str, list[Difference]], list[str]]:
    """Return the differences of each run from the first, and what keeps some from being known."""
    notes: list[str] = []
    values = [_evaluated(run, notes) for run in runs]
    pairs: dict[str, list[Difference]] = {}
    first = values[0]
    for run, second in zip(runs[1:], values[1:], strict=True):
        pairs[run.name] = []
        if not first or not second:
            continue
        for metric in METRICS:
            if metric not in first or metric not in second:
                if metric in first or metric in second:
                    has, lacks = (runs[0], run) if metric in first else (run, runs[0])
                    notes.append(f"{has.name} has {metric}, {lacks.name} has not")
                continue
            pair = difference(metric, first[metric], second[metric])
            if pair is None:
                notes.append(
                    f"{runs[0].name} and {run.name} share no prompt that has {metric}: they were"
                    " evaluated on other rows, or with another system prompt"
                )
            else:
                pairs[run.name].append(pair)
    return pairs, notes


def _evaluated(run: Run, notes: list[str]) -> dict[str, pl.DataFrame]:
    """Return the values per prompt of the run's evaluation; {} and a note where it has none."""
    ref = run.result("evaluate")
    if ref is None:
        notes.append(f"{run.name} has no evaluation: it has not come to the end of that stage")
        return {}
    completions = run.store.table(ref, "completions")
    checkpoint = run.recipe.policies[-1]
    values = prompt_values(completions, run.store.table(ref, "eval_results"), checkpoint)
    if not values:
        there = ", ".join(completions["checkpoint"].unique().sort())
        notes.append(
            f"{run.name} did not evaluate '{checkpoint}' but {there}; add it to"
            " evaluate.checkpoints"
        )
    return values
