"""GRPO by this project, in one process without a server: a JSON line per step on stdout.

    python -m tests.bench.peers.ours_grpo JOB

JOB: the JSON of ``tests.bench.grpo.Job``.
"""

import json
import sys
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from flows.training import GRPOConfig, train_with_grpo_sync
from tests.bench.peers.processes import report
from tests.bench.peers.reward import digits


def main(job: Mapping[str, Any]) -> None:
    """Train ``job["steps"]`` iterations of one optimizer step each."""
    with open(job["prompts_file"]) as file:
        prompts = [json.loads(line)["prompt"] for line in file]
    began: list[float] = []

    def on_metrics(iteration: int, metrics: Mapping[str, float]) -> None:
        del iteration
        now = perf_counter()
        if began:
            report(now - began[-1], metrics)
        began.append(now)

    train_with_grpo_sync(
        job["model"],
        digits,
        prompts,
        GRPOConfig(
            num_episodes=job["steps"],
            num_prompts_per_batch=job["prompts"],
            num_gradient_updates=1,
            group_size=job["samples"],
            max_completion_length=job["new_tokens"],
            beta=0.0,
            learning_rate=job["lr"],
            threads=job["threads"],
            dtype="float32",
            show_progress=False,
            overrides={
                "rl.update.old_logprobs": job["old_logprobs"],
                "hardware.learner.micro_batch_tokens": job["micro_batch_tokens"],
                **({"model.adapter.rank": job["adapter_rank"]} if job["adapter_rank"] else {}),
            },
        ),
        on_metrics=on_metrics,
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
