"""What the learners compute before an update: a KL that is only measured."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rlcore.rl.phases import Phases
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.rl.test_algorithms import digits
from tests.rlcore.rl.test_own_logprobs import scored_iteration

Make = Callable[..., Phases]


@pytest.mark.parametrize("every", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("estimator", ["k3", "full"])
@pytest.mark.parametrize("algorithm", ["gspo", pytest.param("rloo", marks=pytest.mark.slow)])
def test_a_monitored_kl_changes_no_weight(
    make_phases: Make, algorithm: str, estimator: str, every: int, tmp_path: Path
) -> None:
    """The policy after two iterations is the one without; its KL is 0 at first and then above."""
    digests, kls = [], []
    for where in ("none", "monitor"):
        kl = {"where": where, "estimator": estimator, **({"every": every} if kls else {})}
        changes = {"rl.algorithm.kl": kl}
        store = ArtifactStore(str(tmp_path / where))
        phases = make_phases(f"quickstart-{algorithm}", digits, changes, store=store)
        state = phases.start()
        for _ in range(2):
            groups, advantages = scored_iteration(phases, state)
            kls.append(phases.metrics._values.get("actor/ref_kl"))
            state = phases.sync(phases.update(state, groups, advantages))
        digests.append(phases.workers.learner.stamp().digest)
    assert digests[0] == digests[1]
    assert kls[:2] == [None, None]
    assert kls[2] == pytest.approx(0, abs=1e-6)
    if every == 1:
        assert kls[3] > 1e-5
    else:
        assert kls[3] is None
