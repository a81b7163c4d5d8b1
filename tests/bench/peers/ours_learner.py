"""A learner of this project by itself: a JSON line per step on stdout.

    python -m tests.bench.peers.ours_learner JOB

JOB: the JSON of ``tests.bench.adapter.LearnerJob``.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Any

import numpy as np
import psutil

from rlcore.algorithms.objective import PolicyObjective, SftObjective
from rlcore.learner.learner import Learner
from rlcore.learner.spec import LearnerSpec, Term
from rlcore.models.packing import Sequences
from rlcore.models.shape import directory_shape
from rlcore.models.tokenizer import load_tokenizer
from rlcore.plan.memory import PROCESS_BYTES, learner_memory
from schemas.hardware import LearnerHardware
from schemas.model import Adapter
from tests.bench.peers.processes import STEP

LENGTH, PROMPT = 128, 88


def main(job: Mapping[str, Any]) -> None:
    """Train ``job["steps"]`` steps, of two passes each."""
    import deepspeed  # noqa: F401  an idle learner's process has it loaded

    idle = psutil.Process().memory_info().rss
    adapter = None
    if job["kind"] in ("adapter", "nf4"):
        base = "nf4" if job["kind"] == "nf4" else "full"
        adapter = Adapter(rank=job["rank"], alpha=job["rank"], base=base)
    exact = job["kind"] == "full and reference"
    spec = LearnerSpec(
        job["model"],
        zero_stage=0,
        lr=1e-4,
        micro_batch_tokens=job["tokens"],
        adapter=adapter,
        reference_dir=job["model"] if exact else None,
        threads=job["threads"],
        device="cpu",
    )
    learner = Learner(spec)
    # As in a run: the policy is published before it is trained.
    learner.publish()
    objective = PolicyObjective(kl_coef=0.01, kl_estimator="full") if exact else SftObjective()
    for step in range(job["steps"]):
        began = perf_counter()
        found = learner.step([Term(rows(job, step), objective)], spec.lr)
        said = {
            "seconds": perf_counter() - began,
            "loss": found.get("actor/loss", found.get("sft/loss", 0.0)),
            "idle": idle,
            "peak": getrusage(RUSAGE_SELF).ru_maxrss * 1024,
            "planned": planned(job, adapter, exact=exact),
            "linear_bytes": linear_bytes(learner),
        }
        print(STEP + json.dumps(said), flush=True)


def rows(job: Mapping[str, Any], step: int) -> Sequences:
    """Return rows that fill about two passes, the same for every kind of learner."""
    if job["texts"]:
        tokenizer = load_tokenizer(Path(job["model"]))
        count = len(job["texts"]) // job["steps"]
        texts = job["texts"][step * count : (step + 1) * count]
        found = [np.array(tokenizer.encode(text)[:LENGTH], dtype=np.int32) for text in texts]
        return Sequences(found, [np.arange(len(each)) > 0 for each in found])
    draw = np.random.default_rng(step % 2)
    count = 2 * job["tokens"] // LENGTH
    ids = [draw.integers(0, 49_000, LENGTH).astype(np.int32) for _ in range(count)]
    fields = {
        name: [np.full(LENGTH, value, np.float32) for _ in range(count)]
        for name, value in (("advantages", 1), ("old_logprobs", -10), ("rollout_logprobs", -10))
    }
    return Sequences(ids, [np.arange(LENGTH) >= PROMPT] * count, fields)


def planned(job: Mapping[str, Any], adapter: Adapter | None, *, exact: bool) -> int:
    """Return the bytes that the plan of a run gives this process."""
    shape = directory_shape(Path(job["model"]), "model.path")
    hardware = LearnerHardware(zero_stage=0, micro_batch_tokens=job["tokens"])
    learner = learner_memory(
        shape,
        "float32",
        hardware,
        on_gpu=False,
        tokens=job["tokens"],
        row_tokens=LENGTH,
        adapter=adapter,
    )
    return PROCESS_BYTES + learner.device + exact * 4 * shape.parameters


def linear_bytes(learner: Learner) -> int:
    """Return the bytes of the frozen or trained linear layers, without head and factors."""
    return sum(
        parameter.numel() * parameter.element_size()
        for name, parameter in learner._engine.lm.named_parameters()
        if "proj" in name and "lora" not in name
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
