"""Policy and critic may score and train at the same time: what they learn is the same."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlcore.learner.pool import LearnerFuture, LearnerPool
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import Phases
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.rl.test_algorithms import digits

Make = Callable[..., Phases]
PPO: dict[str, Any] = {
    "rl.iterations": 2,
    "rl.update.optimizer.lr": 0.01,
    "rl.algorithm.kl": {"where": "none"},
}


def trained(phases: Phases) -> tuple[str, list[dict[str, float]]]:
    """Train; return the digest of the policy at the end and every iteration's metrics."""
    said: list[dict[str, float]] = []
    state = iterate(phases, Steps(), lambda state, metrics: said.append(dict(metrics)))
    return state.digest, said


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    timed = ("perf/", "timing_s/")
    return {name: value for name, value in metrics.items() if not name.startswith(timed)}


@pytest.mark.parametrize("warmup", [0, 1])
def test_side_by_side_trains_the_same(
    warmup: int, make_phases: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever learner goes first, with a reference and during the critic's warm-up too."""
    over = {
        **PPO,
        "rl.algorithm.kl": {"where": "reward"},
        "rl.critic.warmup_iterations": warmup,
    }
    under_way, most = 0, 0

    def counted(method: str) -> Any:
        real = getattr(LearnerPool, method)

        def start(self: LearnerPool, *values: Any, **keywords: Any) -> LearnerFuture[Any]:
            nonlocal under_way, most
            answer = real(self, *values, **keywords)
            under_way += 1
            most = max(most, under_way)

            def waited() -> Any:
                nonlocal under_way
                under_way -= 1
                return answer.result()

            return LearnerFuture(waited)

        return start

    for method in ("logprobs", "values", "update"):
        monkeypatch.setattr(LearnerPool, method, counted(method))
    found = {}
    for side_by_side in (False, True):
        most = 0
        phases = make_phases(
            "quickstart-ppo", digits, over, store=ArtifactStore(str(tmp_path / str(side_by_side)))
        )
        phases.workers = replace(phases.workers, side_by_side=side_by_side)
        phases.training = replace(phases.training, workers=phases.workers)
        found[side_by_side] = trained(phases)
        assert most == (3 if side_by_side else 1)
    assert found[True][0] == found[False][0]
    assert list(map(without_times, found[True][1])) == list(map(without_times, found[False][1]))
    assert all(metrics["timing_s/train_critic"] > 0 for metrics in found[True][1])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_side_by_side_on_ray_trains_what_one_process_trains(
    make_phases: Make, tmp_path: Path, ray_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two learners of one thread each have cores of their own here."""
    alone = make_phases("quickstart-ppo", digits, {**PPO, "hardware.learner.threads": 1})
    assert not alone.workers.side_by_side
    expected, _ = trained(alone)
    monkeypatch.setenv("HOME", str(ray_home))
    on_ray = {**PPO, "hardware.learner.threads": 1, "hardware.cluster": "ray"}
    together = make_phases(
        "quickstart-ppo", digits, on_ray, store=ArtifactStore(str(tmp_path / "ray"))
    )
    assert together.workers.side_by_side
    assert trained(together)[0] == expected
