"""GRPO by this project as its users run it: a flow on a Prefect server of its own, with a learner
and engines as Ray actors. A JSON line per step on stdout.

    python -m tests.bench.peers.ours_pipeline JOB

JOB: the JSON of ``tests.bench.grpo.Job``.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows import services
from flows.local import client_settings, start_server, wait_healthy
from rlcore.recipes.text import write_yaml
from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from tests.bench.peers.processes import report


def main(job: Mapping[str, Any]) -> None:
    """Run the recipe of ``job``; report its iterations in the end."""
    folder = Path(job["folder"])
    folder.mkdir(parents=True)
    home, port = folder / "prefect", services.free_port()
    environment = {**os.environ, **client_settings(home, port)}
    (folder / "recipe.yaml").write_text(write_yaml(recipe(job)))
    server = start_server(home, port, folder / "reports")
    try:
        wait_healthy(home, server)
        program = Path(sys.executable).parent / "rl-pipeline"
        command = [program, "run", folder / "recipe.yaml"]
        subprocess.run(command, env=environment, cwd=folder, check=True)
    finally:
        services.stop(home, "server")
    rows = query(
        ArtifactStore(str(folder / "store")),
        "select step, name, value from metrics where stage = 'rl' order by step",
    )
    for _, frame in rows.group_by("step", maintain_order=True):
        metrics = dict(frame.select("name", "value").rows())
        if "timing_s/step" in metrics:
            report(metrics["timing_s/step"], metrics)


def recipe(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe that does what ``ours_grpo`` does."""
    return {
        "name": "bench",
        "store": str(Path(job["folder"]) / "store"),
        "model": {"path": job["model"], "dtype": "float32", "max_tokens": 128},
        "data": {
            "sources": [
                {"kind": "file", "path": job["prompts_file"]},
                {"kind": "file", "path": job["test_file"], "split": "test"},
            ],
            "max_prompt_tokens": 128 - job["new_tokens"],
            "deduplicate": "off",
        },
        "sft": {"enabled": False},
        "reward": {"functions": [{"name": "tests.bench.peers.reward:digits"}]},
        "rl": {
            "preset": "grpo",
            "iterations": job["steps"],
            "algorithm": {"kl": {"where": "none"}},
            "rollout": {
                "prompts": job["prompts"],
                "samples": job["samples"],
                "max_new_tokens": job["new_tokens"],
            },
            "update": {
                "mini_batches": 1,
                "epochs": 1,
                "old_logprobs": job["old_logprobs"],
                "optimizer": {"lr": job["lr"]},
            },
            "validation": {"every": job["steps"], "prompts": 1},
            "checkpoint": {"every": job["checkpoint_every"]},
        },
        "evaluate": {
            "checkpoints": ["rl"],
            "max_prompts": 1,
            "samples": 1,
            "pass_k": [1],
            "max_new_tokens": 1,
        },
        "hardware": {
            "device": "cpu",
            "cluster": "ray",
            "learner": {
                "threads": job["threads"],
                "micro_batch_tokens": job["micro_batch_tokens"],
            },
            "rollout": {"engine": job["engine"], "engines": job["engines"]},
        },
        "tracking": {"wandb": False},
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
