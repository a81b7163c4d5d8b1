"""Engines whose weights two processes share, through the pipeline."""

from pathlib import Path

import numpy as np
import pytest

from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from tests.flows.small_run import run_small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SHARED = {
    "hardware.device": "cpu",
    "hardware.rollout.engine": "vllm",
    "hardware.rollout.tensor_parallel": 2,
    "hardware.rollout.gpus_per_engine": 2,
    "hardware.learner.threads": 1,
    "model.from_scratch.num_kv_heads": 2,
    "rl.iterations": 2,
}


@pytest.mark.parametrize("engines", [1, 2])
def test_their_logprobs_are_the_learners(engines: int, prefect_server: str, tmp_path: Path) -> None:
    """Each sync is proven by digest and canary, and what is sampled by the sampler gap."""
    run = run_small(tmp_path, {**SHARED, "hardware.rollout.engines": engines})
    assert run.returncode == 0, run.stdout[-4000:]
    rows = query(
        ArtifactStore(tmp_path / "runs" / "store"),
        "select old_logprobs, sampler_logprobs from trajectories where iteration = 2",
    )
    old, sampled = (
        np.concatenate([np.asarray(row) for row in rows[name]])
        for name in ("old_logprobs", "sampler_logprobs")
    )
    assert old.size > 20
    assert np.allclose(old, sampled, atol=1e-4)
