"""What is run while it is killed: a recipe, the processes to kill, and how far a run has come."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.envs.tools import ToolCall, written
from rlcore.store.artifacts import ArtifactStore
from tests.chaos import victims
from tests.flows.small_run import SMALL

ITERATIONS = 24
EPISODE_ITERATIONS = 24
TURNS, PROMPTS, SAMPLES = 3, 8, 4
CALLS = "CHAOS_CALLS"  # the file that the shop writes to
VLLM = {"hardware.rollout.engine": "vllm"}


@dataclass(frozen=True)
class Job:
    """A run that is dealt blows.

    ``reached(store)``: how far the runs on ``store`` have come, in ``unit``; a blow comes after one
    of ``points`` more of it, and a run continues once there are ``onward`` more. No blow comes
    within ``margin`` of ``iterations``. ``outlived``: victims whose end is not that of the run,
    which continues in new workers (``hardware.restarts``).
    """

    recipe: str
    overrides: dict[str, Any]
    victims: tuple[str, ...]
    reached: Callable[[Path], int]
    unit: str
    points: range
    onward: int
    iterations: int
    margin: int
    outlived: tuple[str, ...]


def rollouts(store: Path) -> int:
    """Return how many iterations have sampled."""
    return len(ArtifactStore(store).keys("rollouts"))


def calls(store: Path) -> int:
    """Return how many calls the shop has had, of all runs."""
    del store
    path = Path(os.environ[CALLS])
    return path.stat().st_size if path.exists() else 0


def pipeline(folder: Path) -> Job:
    """Return the quickstart at its smallest, on vLLM."""
    del folder
    return Job(
        recipe="quickstart",
        overrides={**SMALL, **VLLM, "rl.iterations": ITERATIONS},
        victims=(*victims.KILLED, *victims.STOPPED),
        reached=rollouts,
        unit="iteration",
        points=range(1, 4),
        onward=2,
        iterations=ITERATIONS,
        margin=6,
        outlived=tuple(kind for kind in (*victims.KILLED, *victims.STOPPED) if kind != "flow"),
    )


def episodes(folder: Path) -> Job:
    """Return GRPO over episodes with an MCP server, on vLLM, killed between two turns."""
    return _shopping(folder, "quickstart", {**VLLM, "hardware.rollout.engines": 1})


def episodes_gepo(folder: Path) -> Job:
    """Return the same with GEPO on two transformers engines: its loss reads the log-probs of the
    sampler, whose last bits depend on which rows share a batch."""
    engines = {"hardware.rollout.engine": "transformers", "hardware.rollout.engines": 2}
    return _shopping(folder, "quickstart-gepo", engines)


def _shopping(folder: Path, recipe: str, settings: dict[str, Any]) -> Job:
    os.environ[CALLS] = str(folder / "calls")
    sources = [
        _source(folder / f"{split}.jsonl", split, letters)
        for split, letters in (("train", "abcdefgh"), ("validation", "mn"), ("test", "xy"))
    ]
    own = {
        "data.sources": sources,
        "data.deduplicate": "off",
        "environment": {
            "name": "mcp",
            "command": ["python", str(victims.SHOP)],
            "version": "1",
            "env": [CALLS],
            "max_turns": TURNS,
            "max_observation_tokens": 8,
        },
        "model.max_tokens": 256,
        "model.from_scratch.max_position_embeddings": 256,
        "sft.max_tokens": 256,
        "sft.epochs": 40,
        "sft.max_steps": None,
        "sft.checkpoint_every": 80,
        "rl.iterations": EPISODE_ITERATIONS,
        "rl.rollout.prompts": PROMPTS,
        "rl.rollout.samples": SAMPLES,
        "rl.rollout.max_new_tokens": 32,
        "evaluate.max_new_tokens": 32,
    }
    small = {key: value for key, value in SMALL.items() if not key.startswith("data.")}
    return Job(
        recipe=recipe,
        overrides={**small, **own, **settings},
        victims=("engine", "environment", "environment-process", "mcp", "flow"),
        reached=calls,
        unit="call",
        points=range(PROMPTS * SAMPLES // 4, PROMPTS * SAMPLES * 2),
        onward=PROMPTS * SAMPLES,
        iterations=EPISODE_ITERATIONS,
        margin=12,  # where only every second answer holds a call
        outlived=("engine", "environment", "environment-process", "mcp"),
    )


def _source(path: Path, split: str, letters: str) -> dict[str, Any]:
    """Write conversations about things of ``letters``; return the source that reads them."""
    things = [letter * length for letter in letters for length in range(1, 9)]
    rows = [{"messages": _conversation(thing), "ground_truth": str(len(thing))} for thing in things]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"kind": "file", "path": str(path), "split": split, "data_source": "shop"}


def _conversation(thing: str) -> list[dict[str, str]]:
    """Return an episode that asks the shop twice."""
    asked = written(ToolCall("price", {"thing": thing}))
    said = [
        ("user", f"What is the price of {thing}?"),
        *[("assistant", asked), ("tool", str(len(thing)))] * 2,
        ("assistant", f"#### {len(thing)}"),
    ]
    return [{"role": role, "content": content} for role, content in said]
