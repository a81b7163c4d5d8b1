"""A program that trains from Python and is killed at a point that its command line names."""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flows.training import GRPOConfig, train_with_grpo_sync
from rlcore.api import session
from rlcore.rl.loop import Steps
from rlcore.rl.phases import Phases
from rlcore.store.artifacts import ArtifactStore

WEIGHT = 0.5


def reward(prompt: str, response: str) -> float:
    return WEIGHT * (len(response) % 3)


def report(iteration: int, metrics: Mapping[str, float]) -> None:
    print(f"[done {iteration}]", file=sys.stderr, flush=True)


def kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killing(function: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    """Return ``function`` of a run, at whose second call this process dies, before or after its
    work, and after the checkpoint before: what a call continues from is then known."""
    calls: list[int] = []

    def call(run: Phases, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        result = None if before and len(calls) == 2 else function(run, *arguments, **named)
        if len(calls) == 2:
            run.checkpoints.finish_write()
            kill()
        return result

    return call


def arrange(at: str) -> None:
    """Let this process die at ``at``: a phase, the checkpoint, or one of the last steps."""
    if at in ("rollout", "reward", "advantage", "update"):
        step = killing(getattr(Steps(), at), before=at == "update")
        session.Steps = partial(Steps, **{at: step})
    elif at == "checkpoint":
        Phases.save = killing(Phases.save, before=True)
    elif at == "policy":
        put = ArtifactStore.put

        def killed(self: ArtifactStore, kind: str, *arguments: Any, **named: Any) -> Any:
            if kind == "policy":
                kill()
            return put(self, kind, *arguments, **named)

        ArtifactStore.put = killed
    elif at == "publish":
        session.publish = kill
    elif at == "end":
        session.load_pretrained = kill


if __name__ == "__main__":
    model, folder, at = sys.argv[1:]
    arrange(at)
    config = GRPOConfig(
        num_episodes=8, group_size=4, learning_rate=1e-3, max_completion_length=10, threads=1
    )
    prompts = ["What is 2 + 2?", "Solve for x"]
    done = train_with_grpo_sync(
        model, reward, prompts, config, output_dir=folder, on_metrics=report
    )
    print(json.dumps(done.metrics))
