"""Kill -9 where an algorithm has more state than a policy: the rerun ends at the same weights.

PPO with its critic, DAPO with a half-full batch, VAPO inside the critic's warm-up.
"""

import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.flows.small_run import INLINE, artifact_digests, model_digests, run_small

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


class Case(NamedTuple):
    """A recipe, the overrides that make it small, and the crash points, one per run."""

    recipe: str
    overrides: dict[str, Any]
    crashes: tuple[str, ...]


NO_SFT = {**INLINE, "sft.enabled": False, "evaluate.checkpoints": ["rl"]}
CASES = {
    "ppo": Case(
        "quickstart-ppo",
        {**NO_SFT, "rl.algorithm.kl.controller": "adaptive", "rl.algorithm.kl.target": 1e-3},
        ("update", "checkpoint"),
    ),
    "dapo": Case(
        "quickstart-dapo",
        {
            **NO_SFT,
            "reward.offset": 0.0,
            "rl.update.mini_batches": 2,
            "rl.algorithm.dynamic_sampling.metric": "score",
            "rl.algorithm.dynamic_sampling.tolerance": 0.15,
            "rl.algorithm.dynamic_sampling.max_rounds": 0,
        },
        ("half-full",),
    ),
    "vapo": Case(
        "quickstart-vapo",
        {
            **NO_SFT,
            "rl.update.mini_batches": 2,
            "rl.critic.warmup_iterations": 3,
            "rl.algorithm.positive_nll.threshold": 0.2,
        },
        ("warm-up",),
    ),
}


@pytest.fixture(scope="module", params=CASES)
def pair(
    request: pytest.FixtureRequest, prefect_server: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path]:
    """The folders of an uninterrupted run and of one that was killed and rerun."""
    case = CASES[request.param]
    whole = tmp_path_factory.mktemp(f"{request.param}-whole")
    run = run_small(whole, case.overrides, recipe=case.recipe)
    assert run.returncode == 0, run.stdout[-4000:]
    killed = tmp_path_factory.mktemp(f"{request.param}-killed")
    for point in case.crashes:
        run = run_small(killed, case.overrides, recipe=case.recipe, kill_at=point)
        assert run.returncode == -signal.SIGKILL, f"{point}: {run.stdout[-4000:]}"
        assert not artifact_digests(killed, "export"), f"{point} came after the export"
    run = run_small(killed, case.overrides, recipe=case.recipe)
    assert run.returncode == 0, run.stdout[-4000:]
    return request.param, whole, killed


def test_killed_run_ends_at_the_same_weights_and_records(pair: tuple[str, Path, Path]) -> None:
    """A lost critic, controller, buffer or warm-up count would change what is learnt."""
    name, whole, killed = pair
    for kind in ("rollouts", "rewards", "advantages"):
        assert artifact_digests(killed, kind).keys() == artifact_digests(whole, kind).keys()
    for kind in ("rollouts", "advantages"):
        assert artifact_digests(killed, kind) == artifact_digests(whole, kind)
    policies = model_digests(whole, "policy")
    assert model_digests(killed, "policy") == policies
    assert model_digests(killed, "export") == model_digests(whole, "export")
    rounds = [key for key in artifact_digests(whole, "rollouts") if key.count("-")]
    assert bool(rounds) == (name == "dapo"), "DAPO must need a second round to prove anything"
