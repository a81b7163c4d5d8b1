"""Whole runs before and after a change that must change nothing, compared bit for bit.

    python -m tests.golden.runs record CHECKOUT DIRECTORY   about ten minutes on two cores
    python -m tests.golden.runs compare DIRECTORY DIRECTORY

Both recordings must come from one machine and one set of libraries: rounding is theirs. A checkout
is run by this interpreter with its own code.
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
    "rlhf": ("quickstart-rlhf", {**INLINE, "rl.iterations": 2, "reward_model.max_steps": 60}),
    "ray-vllm": ("quickstart", {"rl.iterations": 3}),
}
# Who made a row and when; what it says is in the other columns.
UNSTABLE = {"created_at", "producer", "wall_s", "seconds"}


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
    for kind in ("dataset", "policy", "reward_model", "rollouts", "rewards", "advantages"):
        for manifest in sorted((store / kind).rglob("manifest.json")):
            known = json.loads(manifest.read_text())
            name = _name(kind, known)
            for weights in sorted(manifest.parent.rglob("*.safetensors")):
                found[f"{name} {weights.name}"] = hashlib.sha256(weights.read_bytes()).hexdigest()
            for table in sorted(manifest.parent.glob("*.parquet")):
                for column, digest in _columns(table):
                    found[f"{name} {table.stem}.{column}"] = digest
    return found


def _name(kind: str, manifest: dict[str, Any]) -> str:
    iteration = manifest["key"].partition("/")[2]
    stage = ""
    if kind == "policy":
        stage = "rl" if "policy" in manifest["parents"] else "sft"
    return " ".join(part for part in (kind, stage, iteration) if part)


def _columns(table: Path) -> Iterator[tuple[str, str]]:
    frame = pl.read_parquet(table)
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
