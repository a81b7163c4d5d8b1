"""A user's rollout engine of forty lines trains, with every proof that ours give."""

from collections.abc import Callable

import pytest

from rlcore.rl.phases import Phases
from tests.rlcore.rl.test_algorithms import digits, one_iteration

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_an_engine_of_forty_lines_trains(make_phases: Callable[..., Phases]) -> None:
    engine = "tests.rlcore.engines.forty_lines:SmallEngine"
    over = {"hardware.rollout.engine": engine, "rl.update.optimizer.lr": 0.01}
    phases = make_phases("quickstart", digits, over)
    state, stamps = phases.start(), []
    for _ in range(2):
        stamps.append(phases.workers.engines.stamp())
        state, rollouts, _ = one_iteration(phases, state)  # bounds the sampler's gap
        state = phases.sync(state)  # bounds the canary's gap
        assert set(rollouts["weight_digest"]) == {stamps[-1].digest}
    stamps.append(phases.workers.engines.stamp())
    assert len({stamp.digest for stamp in stamps}) == 3, "an update changed no weight"
