"""A reference of two ranks, each with a part of its weights, through the pipeline."""

from pathlib import Path

import numpy as np
import pytest

from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from tests.flows.small_run import run_small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DIVIDED = {
    "hardware.device": "cpu",
    "hardware.rollout.engine": "transformers",
    "hardware.rollout.engines": 1,
    "hardware.learner.threads": 1,
    "hardware.learner.reference_ranks": 2,
    "hardware.learner.zero_stage": 3,
    "rl.algorithm.kl": {"where": "loss", "estimator": "k3", "coef": 0.01},
    "rl.iterations": 2,
}


def test_its_logprobs_are_the_policys_until_that_moves(prefect_server: str, tmp_path: Path) -> None:
    run = run_small(tmp_path, DIVIDED)
    assert run.returncode == 0, run.stdout[-4000:]
    rows = query(
        ArtifactStore(tmp_path / "runs" / "store"),
        "select iteration, old_logprobs, ref_logprobs from trajectories order by 1",
    )
    for number, agree in ((1, True), (2, False)):
        mine = rows.filter(iteration=number)
        old, reference = (
            np.concatenate([np.asarray(row) for row in mine[name]])
            for name in ("old_logprobs", "ref_logprobs")
        )
        assert old.size > 20
        assert np.allclose(old, reference, atol=1e-5) is agree
