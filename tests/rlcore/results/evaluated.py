"""Runs with metrics and an evaluation that a test makes by hand, without training anything."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.results.metrics import metrics_frame, publish_metrics
from rlcore.results.run import record_stage
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.table_list import MESSAGES
from tests.rlcore.results.records import stage_record


def completions(
    greedy: Mapping[str, bool],
    sampled: Mapping[str, Sequence[bool]] | None = None,
    checkpoint: str = "rl",
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the tables completions and eval_results of answers that are right or not, by uid;
    a wrong one is one token longer."""
    sampled = sampled or {}
    rows = [("greedy", uid, 0, right) for uid, right in greedy.items()]
    rows += [("sampled", uid, i, r) for uid, given in sampled.items() for i, r in enumerate(given)]
    modes, uids, samples, rights = zip(*rows, strict=True)
    count = len(rows)
    drawn = pl.DataFrame(
        {
            "checkpoint": [checkpoint] * count,
            "uid": uids,
            "data_source": ["arithmetic"] * count,
            "subset": ["test"] * count,
            "mode": modes,
            "sample": pl.Series(samples, dtype=pl.Int32),
            "prompt": [f"2 + 2, {uid}?" for uid in uids],
            "response": ["4" if right else "5" for right in rights],
            "ground_truth": ["4"] * count,
            "outcome": ["ok" if right else "wrong" for right in rights],
            "score": [float(right) for right in rights],
            "answer": pl.Series([None] * count, dtype=pl.String),
            "finish_reason": ["stop"] * count,
            "num_tokens": pl.Series([9 + (not right) for right in rights], dtype=pl.Int32),
            "verdicts": pl.Series([None] * count, dtype=pl.String),
            "turns": pl.Series([[]] * count, dtype=MESSAGES),
            "valid_actions": pl.Series([[True]] * count, dtype=pl.List(pl.Boolean)),
        }
    )
    figures = {"greedy/acc": drawn.filter(pl.col("mode") == "greedy")}
    if sampled:
        figures["sampled/avg@2"] = drawn.filter(pl.col("mode") == "sampled")
    results = [
        {
            "checkpoint": checkpoint,
            "data_source": source,
            "subset": subset,
            "metric": metric,
            "value": 0.5,
            "ci_low": 0.4,
            "ci_high": 0.6,
            "num_prompts": of["uid"].n_unique(),
            "num_samples": of.height,
        }
        for metric, of in figures.items()
        for source, subset in (("arithmetic", "test"), ("all", "all"))
    ]
    return drawn, pl.DataFrame(results)


def make_run(
    runs: Path,
    name: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    evaluation: tuple[pl.DataFrame, pl.DataFrame] | None = None,
    curves: Mapping[str, Mapping[int, Mapping[str, float]]] | None = None,
    code: str = "c",
) -> Path:
    """Make the run ``name`` of the recipe quickstart below ``runs`` and return its folder.

    ``curves``: metrics by stage and step.
    """
    folder = runs / name
    folder.mkdir(parents=True)
    recipe = load_recipe("quickstart", overrides or {}, directory=RECIPES).model_dump(mode="json")
    dumped = yaml.dump(recipe, Dumper=yaml.CSafeDumper)
    (folder / "recipe.yaml").write_text(dumped)
    store = ArtifactStore(runs / "store")
    made = Lineage("r", code)
    for stage, steps in (curves or {}).items():
        for step, values in steps.items():
            frame = metrics_frame(stage, step, values)
            publish_metrics(store, f"{name}-{stage}", f"{step:06d}", frame, made)
        row = stage_record(name, stage, kind="policy", key=f"{name}-{stage}")
        record_stage(store, row, made)
    if evaluation is not None:
        drawn, results = evaluation
        tables = {"completions": drawn, "eval_results": results}
        ref = store.put("evaluation", name, tables=tables, lineage=made)
        row = stage_record(name, "evaluate", kind="evaluation", key=name, sha256=ref.sha256)
        record_stage(store, row, made)
    return folder
