"""Two ranks that divide sequences which one could not hold, through the pipeline."""

from pathlib import Path

import numpy as np
import pytest

from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from tests.flows.small_run import run_small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HALF = 64  # tokens a rank, of the 128 that a sequence of quickstart may have
DIVIDED = {
    "hardware.device": "cpu",
    "hardware.rollout.engine": "transformers",
    "hardware.rollout.engines": 1,
    "hardware.learner.threads": 1,
    "hardware.learner.ranks": 2,
    "hardware.learner.sequence_parallel": 2,
    "hardware.learner.micro_batch_tokens": HALF,
    "rl.preset": "ppo",
    "rl.iterations": 2,
}


def test_policy_and_critic_train_on_halves(prefect_server: str, tmp_path: Path) -> None:
    alone = {"hardware.learner.ranks": 1, "hardware.learner.sequence_parallel": 1}
    refused = run_small(tmp_path, DIVIDED | alone)
    assert refused.returncode == 1
    assert f"hardware.learner.micro_batch_tokens = {HALF} is below" in refused.stdout
    run = run_small(tmp_path, DIVIDED)
    assert run.returncode == 0, run.stdout[-4000:]
    rows = query(
        ArtifactStore(tmp_path / "runs" / "store"),
        "select old_logprobs, sampler_logprobs, values from trajectories where iteration = 2",
    )
    old, sampled, values = (
        np.concatenate([np.asarray(row) for row in rows[name]])
        for name in ("old_logprobs", "sampler_logprobs", "values")
    )
    assert old.size > 20
    assert np.allclose(old, sampled, atol=1e-4)  # a rank's half alone would be another model
    assert np.abs(values).max() > 0
