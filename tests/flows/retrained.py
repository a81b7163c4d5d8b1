"""A recipe that learns in seconds to say what its files say, and a process that retrains it, which
may kill itself between two steps.

    python -m tests.flows.retrained RECIPE OVERRIDES_JSON [STEP]

STEP: after and the name of a step: observe, rl_pipeline, gate, promote. One line is JSON.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import yaml

from tests.flows.small_run import INLINE, ROOT

NAME = "says"
STEPS = ("observe", "rl_pipeline", "gate", "promote")
TEST_ROWS = 80
REWARD = """
def says(data_source, solution, ground_truth, extra_info):
    right = solution.strip() == ground_truth
    return {"score": float(right), "acc": right}
"""


def write_rows(path: Path, answer: str, count: int, first: int) -> Path:
    """Write ``count`` questions, numbered from ``first``, that are answered with ``answer``, one
    in four with "yes", which is the truth: a reward that pays no demonstration is refused. The file
    appears whole."""
    rows = [
        {
            "prompt": f"say {number}",
            "completion": answer if number % 4 else "yes",
            "ground_truth": "yes",
        }
        for number in range(first, first + count)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return partial.replace(path)


def write_recipe(folder: Path, **retrain: Any) -> Path:
    """Write the recipe, its reward and its test rows into ``folder``; return the recipe's path.
    Training rows are those of ``rows/*.jsonl``, of which there are none yet."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "says.py").write_text(REWARD)
    write_rows(folder / "test.jsonl", "yes", TEST_ROWS, 9000)
    recipe = {
        "name": NAME,
        "model": {
            "from_scratch": {
                "hidden_size": 32,
                "num_layers": 1,
                "num_heads": 2,
                "num_kv_heads": 1,
                "intermediate_size": 64,
                "vocab_size": 300,
                "max_position_embeddings": 64,
            },
            "dtype": "float32",
            "max_tokens": 64,
        },
        "data": {
            "sources": [
                {"kind": "file", "path": "rows/*.jsonl"},
                {"kind": "file", "path": "test.jsonl", "split": "test"},
            ],
            "max_prompt_tokens": 40,
            "validation_fraction": 0.1,
            "deduplicate": "off",
        },
        "sft": {
            "batch_size": 32,
            "max_steps": 60,
            "max_tokens": 64,
            "epochs": 20,
            "optimizer": {"lr": 1e-2},
        },
        "reward": {"functions": [{"name": "says.py:says"}]},
        "rl": {
            "iterations": 1,
            "rollout": {"prompts": 4, "samples": 4, "max_new_tokens": 8},
            "update": {"optimizer": {"lr": 1e-7}, "epochs": 1},
            "validation": {"prompts": 4},
        },
        "evaluate": {"samples": 1, "pass_k": [1], "max_new_tokens": 8},
        "tracking": {"wandb": False},
        "retrain": {"margin": 0.05, **retrain},
    }
    path = folder / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def run_retrain(
    recipe: Path, overrides: dict[str, Any] | None = None, *, kill_after: str = ""
) -> tuple[int, dict[str, Any]]:
    """Retrain in a process of its own beside the recipe; return its code and what it printed."""
    command = [sys.executable, "-m", "tests.flows.retrained", str(recipe)]
    command += [json.dumps({**INLINE, **(overrides or {})}), *([kill_after] if kill_after else [])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=recipe.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode == -signal.SIGKILL:
        return done.returncode, {}
    said = [line for line in done.stdout.splitlines() if line.startswith('{"state"')]
    assert said, done.stdout[-6000:]
    return done.returncode, json.loads(said[-1])


def _die_after(step: str) -> None:
    import flows.retrain

    original: Callable[..., Any] = getattr(flows.retrain, step)

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(flows.retrain, step, wrapped)


def main() -> None:
    """Retrain; print state, message, result, and whether Ray was imported."""
    recipe, overrides = sys.argv[1], json.loads(sys.argv[2])
    if len(sys.argv) > 3:
        _die_after(sys.argv[3].removeprefix("after "))
    from flows.retrain import ENDS, retrain

    state = retrain(recipe, overrides, return_state=True)
    result = state.result(raise_on_failure=False) if state.name in ENDS.values() else None
    said = {
        "state": state.name,
        "message": state.message,
        "result": result,
        "ray": "ray" in sys.modules,
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
