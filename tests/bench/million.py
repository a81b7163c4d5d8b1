"""A store of a million trajectories: ``RUNS`` runs of ``ITERATIONS`` iterations each.

The first run is written by the store itself. The others have the same rows under their own keys:
copies of its folders with the manifests that the store would have written, in seconds instead of
minutes.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rlcore.results.run import StageRecord, record_stage
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.checks import MANIFEST
from schemas.artifacts import ArtifactRef

RUNS, ITERATIONS, ROWS, TOKENS = 40, 49, 512, 24
TRAJECTORIES = RUNS * ITERATIONS * ROWS
ARTIFACTS = RUNS * (3 * ITERATIONS + 1)
RECORDED = ("rollouts", "rewards", "advantages")
SAMPLES = 8


def build(root: Path) -> None:
    """Write the store below ``root``: about 400 MB, half a minute."""
    store = ArtifactStore(root)
    for iteration in range(1, ITERATIONS + 1):
        _record(store, _key(0), iteration)
    record_stage(store, _stage(0), Lineage("recipe-0", "code"))
    for run in range(1, RUNS):
        for kind in RECORDED:
            for iteration in range(1, ITERATIONS + 1):
                _copy(root / kind, f"{_key(0)}/{iteration:06d}", f"{_key(run)}/{iteration:06d}")
        record_stage(store, _stage(run), Lineage(f"recipe-{run}", "code"))


def _key(run: int) -> str:
    return f"{run:032x}"


def _stage(run: int) -> StageRecord:
    return StageRecord(
        flow_run_id=f"{run:08x}-0000-4000-8000-000000000000",
        run=f"bench-{run:08x}",
        recipe="bench",
        recipe_digest=f"recipe-{run}",
        seed=run,
        overrides="{}",
        stage="rl",
        result_kind="policy",
        result_key=_key(run),
        records_key=_key(run),
        sha256=None,
        cached=None,
        began="2026-01-01T00:00:00+00:00",
        seconds=None,
    )


def _record(store: ArtifactStore, key: str, iteration: int) -> None:
    """Write the rollouts, rewards and advantages of one iteration."""
    parents: dict[str, ArtifactRef] = {}
    for kind, frame in zip(RECORDED, _tables(iteration), strict=True):
        lineage = Lineage("recipe-0", "code", parents, metadata={"iteration": iteration})
        name = f"{key}/{iteration:06d}"
        parents = {**parents, kind: store.put(kind, name, tables={kind: frame}, lineage=lineage)}


def _per_token(values: np.ndarray, dtype: Any) -> pl.Series:
    return pl.Series(values).cast(pl.List(dtype))


def _constant(value: object, dtype: Any) -> pl.Series:
    return pl.Series([value] * ROWS, dtype=dtype)


def _tables(iteration: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    draw = np.random.default_rng(iteration)
    ids = [f"{iteration:06d}-{row:04d}" for row in range(ROWS)]
    logprobs = -draw.random((ROWS, TOKENS), dtype=np.float32)
    logprobs[:, : TOKENS // 3] = 0
    right = draw.random(ROWS) < 0.3 + 0.4 * iteration / ITERATIONS
    rewards = pl.DataFrame(
        {
            "trajectory_id": ids,
            "outcome": ["ok" if each else "wrong" for each in right],
            "score": right.astype(float),
            "correct": right,
            "counts": _constant(True, pl.Boolean),
            "parts": [f'{{"arithmetic": {float(each)}}}' for each in right],
            "detail": _constant("", pl.String),
            "failures": _constant("{}", pl.String),
            "seconds": draw.random(ROWS),
            "verdicts": _constant(None, pl.String),
        }
    )
    advantages = pl.DataFrame(
        {
            "trajectory_id": ids,
            "advantages": _per_token(logprobs * 2, pl.Float32),
            "old_logprobs": _per_token(logprobs, pl.Float32),
            "ref_logprobs": _constant(None, pl.List(pl.Float32)),
            "values": _constant(None, pl.List(pl.Float32)),
            "returns": _constant(None, pl.List(pl.Float32)),
            "positive": _constant(None, pl.Boolean),
            "penalty": _constant(None, pl.Float64),
        }
    )
    return _rollouts(draw, ids, logprobs, iteration), rewards, advantages


def _rollouts(
    draw: np.random.Generator, ids: list[str], logprobs: np.ndarray, iteration: int
) -> pl.DataFrame:
    prompt = TOKENS // 3
    mask = np.zeros((ROWS, TOKENS), bool)
    mask[:, prompt:] = True
    groups = [f"u{draw.integers(2000)}" for _ in range(ROWS // SAMPLES)]
    return pl.DataFrame(
        {
            "trajectory_id": ids,
            "uid": [uid for uid in groups for _ in range(SAMPLES)],
            "sample": pl.Series(np.arange(ROWS) % SAMPLES, dtype=pl.Int32),
            "iteration": _constant(iteration, pl.Int32),
            "token_ids": _per_token(draw.integers(0, 500, (ROWS, TOKENS)), pl.Int32),
            "prompt_tokens": _constant(prompt, pl.Int32),
            "loss_mask": _per_token(mask, pl.Boolean),
            "sampler_logprobs": _per_token(logprobs, pl.Float32),
            "response": [f"the answer is {n}" for n in draw.integers(0, 99, ROWS)],
            "finish_reason": _constant("stop", pl.String),
            "stop_reason": _constant("done", pl.String),
            "turn_ends": _constant([TOKENS], pl.List(pl.Int32)),
            "turn_rewards": _constant([0.0], pl.List(pl.Float64)),
            "turn_versions": _constant([iteration], pl.List(pl.Int64)),
            "valid_actions": _constant([True], pl.List(pl.Boolean)),
            "seed": draw.integers(0, 2**62, ROWS),
            "weight_version": _constant(iteration - 1, pl.Int64),
            "weight_digest": _constant(f"{iteration:064x}", pl.String),
        }
    )


def _copy(kind: Path, source: str, target: str) -> None:
    """Copy an artifact of the run ``_key(0)`` to another key, its parents too."""
    shutil.copytree(kind / source, kind / target)
    document = kind / target / MANIFEST
    fields = json.loads(document.read_text())
    old, new = source.partition("/")[0], target.partition("/")[0]
    fields["key"] = target
    for parent in fields["parents"].values():
        parent["key"] = parent["key"].replace(old, new)
        parent["uri"] = parent["uri"].replace(old, new)
    document.write_text(json.dumps(fields, indent=1))
