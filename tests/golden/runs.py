"""Whole runs before and after a change that must change nothing, compared bit for bit.

    python -m tests.golden.runs record CHECKOUT DIRECTORY   about ten minutes on two cores
    python -m tests.golden.runs compare DIRECTORY DIRECTORY

Both recordings must come from one machine and one set of libraries: rounding is theirs. A checkout
is run by this interpreter with its own code. Where a table changed its layout, both sides are
compared in the older one (``_as_before``). The base model was part of the dataset.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

ALGORITHMS = ("ppo", "dapo", "rloo", "gspo", "gepo", "vapo", "remax")
SHORT: dict[str, Any] = {
    "sft.max_steps": 240,
    "sft.checkpoint_every": 80,
    "rl.validation.prompts": 64,
    "rl.validation.stop_at": None,
    "evaluate.max_prompts": 64,
    "evaluate.samples": 2,
    "evaluate.pass_k": [1, 2],
    "tracking.wandb": False,
}
INLINE = {
    "hardware.cluster": "in_process",
    "hardware.rollout.engine": "transformers",
    "hardware.rollout.engines": 1,
    "hardware.learner.threads": 1,
    "rl.iterations": 5,
}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "quickstart": ("quickstart", INLINE),
    **{name: (f"quickstart-{name}", INLINE) for name in ALGORITHMS},
    "vapo": ("quickstart-vapo", {**INLINE, "rl.critic.warmup_iterations": 2}),
    "rlhf": (
        "quickstart-rlhf",
        {
            **INLINE,
            "rl.iterations": 2,
            "reward_model.preferences.prompts": 256,
            "reward_model.preferences.validation_prompts": 64,
        },
    ),
    "ray-vllm": ("quickstart", {"hardware.rollout.engine": "vllm", "rl.iterations": 3}),
}
KINDS = ("base_model", "dataset", "policy", "reward_model", "rollouts", "rewards", "advantages")
# Who made a row and when; what it says is in the other columns.
UNSTABLE = {"created_at", "producer", "wall_s", "seconds"}
PER_TOKEN = (
    "token_ids",
    "loss_mask",
    "sampler_logprobs",
    "advantages",
    "old_logprobs",
    "ref_logprobs",
    "values",
    "returns",
    "own_logprobs",
)
PER_TURN = ("turn_ends", "turn_rewards", "turn_versions", "valid_actions")


def record(checkout: Path, directory: Path, names: list[str]) -> None:
    """Run ``names`` of RUNS with the code of ``checkout``; each leaves a store in ``directory``.

    Raises CalledProcessError when a run fails.
    """
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    for name in names:
        recipe, changes = RUNS[name]
        place = directory / name
        place.mkdir(parents=True)
        overrides = [
            option
            for key, value in {**SHORT, **changes}.items()
            for option in ("-o", f"{key}={json.dumps(value)}")
        ]
        print(f"{name}: {recipe}", flush=True)
        with (place / "log.txt").open("w") as log:
            subprocess.run(
                [sys.executable, "-m", "flows.cli", "run", recipe, *overrides],
                cwd=place,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
            )


def contents(store: Path) -> dict[str, str]:
    """Return name -> digest of everything that a run's store holds and that learning decided.

    Weights by the bytes of their file; tables column by column, so that one more column is told
    from one that changed. Names hold no cache key: those go with the code.
    """
    found = {}
    prompts = _prompt_tokens(store)
    for kind in KINDS:
        for manifest in sorted((store / kind).rglob("manifest.json")):
            known = json.loads(manifest.read_text())
            name = _name(kind, known)
            for weights in sorted(manifest.parent.rglob("*.safetensors")):
                found[f"{name} {weights.name}"] = hashlib.sha256(weights.read_bytes()).hexdigest()
            for table in sorted(manifest.parent.glob("*.parquet")):
                for column, digest in _columns(_as_before(pl.read_parquet(table), prompts)):
                    found[f"{name} {table.stem}.{column}"] = digest
    return found


def _name(kind: str, manifest: dict[str, Any]) -> str:
    iteration = manifest["key"].partition("/")[2]
    if kind == "base_model":
        kind = "dataset"
    stage = ""
    if kind == "policy":
        stage = "rl" if "policy" in manifest["parents"] else "sft"
    return " ".join(part for part in (kind, stage, iteration) if part)


def _prompt_tokens(store: Path) -> pl.DataFrame:
    """Return (trajectory_id, prompt_tokens) of every rollout that is stored with its prompt."""
    frames = [pl.DataFrame(schema={"trajectory_id": pl.String, "prompt_tokens": pl.Int32})]
    for table in sorted((store / "rollouts").rglob("*.parquet")):
        frame = pl.read_parquet(table)
        if "prompt_tokens" in frame.columns:
            frames.append(frame.select("trajectory_id", "prompt_tokens"))
    return pl.concat(frames)


def _as_before(frame: pl.DataFrame, prompts: pl.DataFrame) -> pl.DataFrame:
    """Return a table of whole episodes with per-token columns of responses, prompts apart.

    Tables in that layout come back as they are. Raises AssertionError where a prompt's token holds
    anything but 0.
    """
    per_token = [name for name in PER_TOKEN if name in frame.columns]
    if not per_token or "trajectory_id" not in frame.columns or prompts.is_empty():
        return frame
    frame = frame.drop("prompt_tokens", strict=False).join(
        prompts, on="trajectory_id", how="left", maintain_order="left", validate="m:1"
    )
    length = pl.col("prompt_tokens")
    if "token_ids" in frame.columns:
        frame = frame.with_columns(
            prompt_ids=pl.col("token_ids").list.head(length),
            num_turns=pl.col("turn_ends").list.len().cast(pl.Int32),
        )
    for name in set(per_token) - {"token_ids"}:
        prompt = frame.select(pl.col(name).list.head(length)).explode(name)[name].drop_nulls()
        assert not (prompt.cast(pl.Float64) != 0).any(), f"{name} is not 0 on a prompt"
    return frame.with_columns(pl.col(name).list.slice(length) for name in per_token).drop(
        "prompt_tokens", "stop_reason", *PER_TURN, strict=False
    )


def _columns(frame: pl.DataFrame) -> Iterator[tuple[str, str]]:
    for column in frame.columns:
        if column not in UNSTABLE:
            text = frame.select(column).write_ndjson()
            yield column, hashlib.sha256(text.encode()).hexdigest()


def compare(before: Path, after: Path) -> int:
    """Print what differs between two recordings; return the number of differences."""
    differences = 0
    for name in sorted(path.name for path in before.iterdir()):
        old, new = (contents(side / name / "runs" / "store") for side in (before, after))
        assert old, f"{before / name} holds no store"
        changed = [key for key in old if new.get(key) != old[key]]
        for key in changed:
            print(f"{name}: {key} {'differs' if key in new else 'is missing'}")
        for key in new.keys() - old.keys():
            print(f"{name}: {key} is new (not counted)")
        print(f"{name}: {len(old) - len(changed)} of {len(old)} equal")
        differences += len(changed)
    return differences


def main() -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["record", "compare"])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--runs", nargs="*", choices=RUNS, default=list(RUNS))
    options = parser.parse_args()
    first, second = options.first.resolve(), options.second.resolve()
    if options.command == "compare":
        return int(compare(first, second) > 0)
    record(first, second, options.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
