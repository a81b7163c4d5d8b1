"""Engines that sleep while learners score and train, and a reference that rests, through the
pipeline. On a CPU vLLM takes the calls of a GPU and gives nothing back."""

from pathlib import Path
from typing import Any

import pytest

from tests.flows.small_run import model_digests, run_small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
AWAKE: dict[str, Any] = {
    "hardware.device": "cpu",
    "hardware.rollout.engine": "vllm",
    "hardware.rollout.engines": 1,
    "hardware.learner.threads": 1,
    "rl.algorithm.kl": {"where": "loss", "estimator": "k3", "coef": 0.01},
    "rl.iterations": 2,
}
ASLEEP = AWAKE | {"hardware.rollout.sleep": True, "hardware.learner.offload_reference": True}


def test_a_run_whose_engines_sleep_learns_the_same(prefect_server: str, tmp_path: Path) -> None:
    digests = []
    for name, settings in (("awake", AWAKE), ("asleep", ASLEEP)):
        (tmp_path / name).mkdir()
        run = run_small(tmp_path / name, settings)
        assert run.returncode == 0, run.stdout[-4000:]
        digests.append(model_digests(tmp_path / name, "policy"))
    assert digests[0] == digests[1]
