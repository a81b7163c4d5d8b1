"""A run and its store, made by hand: stages, metrics, rollouts, rewards, an evaluation."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.recipes.text import write_yaml
from rlcore.results.metrics import metrics_frame, publish_metrics
from rlcore.results.run import Run, record_stage
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.table_list import MESSAGES
from tests.rlcore.results.records import stage_record

PROMPTS, DRAWN, SAMPLES = 6, 4, 2
MADE = Lineage("r", "c")


class MadeRun:
    """Writes a run below ``runs``, stage by stage."""

    def __init__(self, runs: Path, name: str = "quickstart-0123abcd") -> None:
        self.name = name
        self.folder = runs / name
        self.folder.mkdir(parents=True)
        recipe = load_recipe("quickstart", {}, directory=RECIPES)
        (self.folder / "recipe.yaml").write_text(write_yaml(recipe.model_dump(mode="json")))
        self.store = ArtifactStore(runs / "store")
        self.key = f"rl-{name[-8:]}"
        self._stages = 0

    def open(self) -> Run:
        return Run.open(self.name, self.folder.parent)

    def stage(
        self, stage: str, kind: str, key: str, ref: ArtifactRef | None = None, **changes: Any
    ) -> None:
        """Record that the run came to a stage, and with ``ref`` that it ended."""
        row = stage_record(
            self.name, stage, kind=kind, key=key, sha256=None if ref is None else ref.sha256
        )
        began = f"2026-01-01T00:{self._stages:02d}:00.000001+00:00"
        self._stages += 1
        record_stage(self.store, replace(row, began=began, **changes), MADE)

    def prepare(self, prompt: str = "How many?", truth: str = "7") -> ArtifactRef:
        """Write the dataset."""
        rows = [
            {
                "uid": f"p{number}",
                "split": "train",
                "subset": "train",
                "data_source": "arithmetic",
                "prompt": [{"role": "user", "content": f"{prompt} {number}"}],
                "prompt_ids": [1, 2],
                "ability": "math",
                "reward_style": "rule",
                "ground_truth": truth,
                "extra_info": "{}",
            }
            for number in range(PROMPTS)
        ]
        schema = {"prompt_ids": pl.List(pl.Int32)}
        frame = pl.DataFrame(rows, schema_overrides=schema)
        key = f"d{self.key}"
        ref = self.store.put("dataset", key, tables={"prompts": frame}, lineage=MADE)
        self.stage("prepare_data", "dataset", key, ref)
        return ref

    def train(self, dataset: ArtifactRef, iterations: int, response: str = "it is 7") -> None:
        """Begin the stage rl, and write the records of its iterations."""
        self.stage("rl", "policy", self.key)
        made = Lineage("r", "c", parents={"dataset": dataset})
        publish_metrics(self.store, self.key, "000000", self._metrics(0), made)
        for iteration in range(1, iterations + 1):
            self.iterate(iteration, made, response)

    def iterate(self, iteration: int, made: Lineage, response: str) -> None:
        """Write the records of one iteration."""
        name = f"{self.key}/{iteration:06d}"
        rollouts = _rollouts(iteration, response)
        ref = self.store.put("rollouts", name, tables={"rollouts": rollouts}, lineage=made)
        scored = _rewards(rollouts["trajectory_id"].to_list(), iteration)
        parents = replace(made, parents={**made.parents, "rollouts": ref})
        self.store.put("rewards", name, tables={"rewards": scored}, lineage=parents)
        frame = self._metrics(iteration)
        publish_metrics(self.store, self.key, f"{iteration:06d}", frame, made)

    def validate(self, iteration: int, right: int, response: str) -> None:
        """Write the record of a validation of every prompt, of which the first ``right`` ones were
        answered right."""
        uids = [f"p{number}" for number in range(PROMPTS)]
        scored = _rewards(uids, iteration).with_columns(
            score=pl.Series([float(number < right) for number in range(PROMPTS)])
        )
        answers = pl.DataFrame(
            {
                "trajectory_id": uids,
                "response": [f"{response} {uid}" for uid in uids],
                "finish_reason": ["stop"] * PROMPTS,
                "num_tokens": [3] * PROMPTS,
            },
            schema_overrides={"num_tokens": pl.Int32},
        )
        tables = {"validation_rewards": scored, "validation_answers": answers}
        name = f"{self.key}/{iteration:06d}"
        self.store.put("validation", name, tables=tables, lineage=Lineage("r", "c"))

    def evaluate(self, response: str = "it is 7", metric: str = "greedy/acc") -> None:
        """End the stage rl, and write the evaluation of two checkpoints."""
        (self.folder / "model").mkdir(exist_ok=True)
        (self.folder / "model" / "weights").write_text("w")
        model = self.folder / "model"
        policy = self.store.put("policy", self.key, directory=model, lineage=MADE)
        self.stage("rl", "policy", self.key, policy)
        figures = [
            {
                "checkpoint": checkpoint,
                "data_source": source,
                "subset": "test",
                "metric": name,
                "value": value,
                "ci_low": value * 0.8,
                "ci_high": min(value * 1.2, 1.0),
                "num_prompts": 50,
                "num_samples": 50,
            }
            for checkpoint, value in (("base", 0.1), ("rl", 0.75))
            for source in ("arithmetic", "all")
            for name in (metric, "greedy/response_length/mean")
        ]
        answers = [
            {
                "checkpoint": checkpoint,
                "uid": "p1",
                "data_source": "arithmetic",
                "subset": "test",
                "mode": "greedy",
                "sample": 0,
                "prompt": "How many?",
                "response": response,
                "ground_truth": "7",
                "outcome": outcome,
                "score": float(outcome == "ok"),
                "answer": None,
                "finish_reason": "stop",
                "num_tokens": 3,
                "verdicts": None,
                "turns": [],
                "valid_actions": [True],
            }
            for checkpoint, outcome in (("base", "wrong"), ("rl", "ok"))
        ]
        types = {"sample": pl.Int32, "num_tokens": pl.Int32}
        texts = {"answer": pl.String, "verdicts": pl.String, "turns": MESSAGES}
        tables = {
            "eval_results": pl.DataFrame(figures),
            "completions": pl.DataFrame(answers, schema_overrides=types | texts),
            "win_pairs": pl.DataFrame([_pair(response)], schema_overrides={"verdicts": pl.String}),
        }
        key = f"e{self.key}"
        ref = self.store.put("evaluation", key, tables=tables, lineage=MADE)
        self.stage("evaluate", "evaluation", key, ref)

    def complete(self) -> None:
        """Leave the summary that says so."""
        (self.folder / "summary.json").write_text(json.dumps({"iterations": 3}))

    def _metrics(self, iteration: int) -> pl.DataFrame:
        wave = math.sin(iteration / 7)
        values = {
            "critic/score/mean": 0.3 + 0.2 * wave,
            "response_length/mean": 12 + wave,
            "actor/entropy": 1 / (1 + iteration),
            "actor/ref_kl": 1e-7 * (1 + wave),
            "actor/grad_norm": math.inf if iteration == 2 else 0.7 + wave / 3,
            "training/rollout_logprobs_gap_max": 2e-6 * (2 + wave),
            "timing_s/gen": 1.5,
            "timing_s/step": 2.0,
            "perf/response_tokens": 96.0,
            "perf/total_num_tokens": 128.0,
            "actor/lr": 1e-6,
        }
        if iteration % 5 == 0:
            values["val/accuracy"] = 0.5 + 0.1 * wave
        return metrics_frame("rl", iteration, values)


def _rollouts(iteration: int, response: str) -> pl.DataFrame:
    rows = [
        {
            "trajectory_id": f"{iteration}-{uid}-{sample}",
            "uid": f"p{uid}",
            "sample": sample,
            "iteration": iteration,
            "token_ids": [1, 2, 3, 4],
            "prompt_tokens": 2,
            "loss_mask": [False, False, True, True],
            "sampler_logprobs": [0.0, 0.0, -0.5, -0.5],
            "response": f"{response} (iteration {iteration})",
            "finish_reason": "stop",
            "stop_reason": "done",
            "turn_ends": [4],
            "turn_rewards": [0.0],
            "turn_versions": [iteration],
            "valid_actions": [True],
            "seed": 0,
            "weight_version": iteration,
            "weight_digest": "w",
        }
        for uid in ((iteration * DRAWN + place) % PROMPTS for place in range(DRAWN))
        for sample in range(SAMPLES)
    ]
    types = {
        **dict.fromkeys(("sample", "iteration", "prompt_tokens"), pl.Int32),
        **dict.fromkeys(("token_ids", "turn_ends"), pl.List(pl.Int32)),
        "sampler_logprobs": pl.List(pl.Float32),
    }
    return pl.DataFrame(rows, schema_overrides=types)


def _rewards(names: list[str], iteration: int) -> pl.DataFrame:
    right = np.random.default_rng(iteration).random(len(names)) < min(0.9, iteration / 10)
    rows = [
        {
            "trajectory_id": name,
            "outcome": "ok" if good else "wrong",
            "score": float(good),
            "correct": bool(good),
            "counts": True,
            "parts": "{}",
            "detail": "",
            "failures": "{}",
            "seconds": 0.0,
            "verdicts": None,
        }
        for name, good in zip(names, right, strict=True)
    ]
    return pl.DataFrame(rows, schema_overrides={"verdicts": pl.String})


def _pair(response: str) -> dict[str, object]:
    """Return a row of ``win_pairs`` whose texts hold ``response``."""
    return {
        "checkpoint": "rl",
        "against": "base",
        "uid": "p1",
        "data_source": "arithmetic",
        "subset": "test",
        "prompt": f"Which of {response}?",
        "answer": response,
        "other": response,
        "before": 1.0,
        "after": 0.0,
        "asked": True,
        "verdicts": None,
    }
