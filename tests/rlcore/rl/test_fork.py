"""RL that continues from a checkpoint of another run does first what that run did next."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlcore.results.lineage import trace
from rlcore.rl.phases import Phases
from rlcore.rl.records import RecordedIterations
from rlcore.rl.replay import Replay
from rlcore.rl.state import LoopState
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError
from tests.rlcore.rl.conftest import Dataset
from tests.rlcore.rl.test_records_history import digits, one_iteration
from tests.rlcore.rl.test_replay import ITERATIONS, TWO_KEPT, trained

pytestmark = pytest.mark.timeout(180)
Make = Callable[..., Phases]
AT = ITERATIONS - 1


def forked(make_phases: Make, parent: Phases, **changes: Any) -> Phases:
    """Return a fork of ``parent``, by default of the last but one iteration, as "other"."""
    begun = RecordedIterations(parent.store, "run", "run").iteration(0).manifest
    over = {**TWO_KEPT[2], "rl.iterations": ITERATIONS, "rl.fork": f"run@{AT}", **changes}
    lineage = parent.records.lineage
    assert lineage.parents == begun.parents
    return make_phases("quickstart", digits, over, store=parent.store, key="other", lineage=lineage)


def test_its_first_iteration_is_the_next_one_of_the_other_run(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    parent, digests = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "kept")
    store, fork = parent.store, forked(make_phases, parent)
    state = fork.start()
    assert (state.iteration, state.digest) == (AT, digests[AT])
    assert set(state.accuracies or {}) == {str(AT)}
    state = one_iteration(fork, state)
    assert state.digest == digests[ITERATIONS]
    for kind in ("rollouts", "rewards", "advantages"):
        ours, theirs = (store.find(kind, f"{k}/{ITERATIONS:06d}") for k in ("other", "run"))
        assert ours is not None
        assert theirs is not None
        assert ours.sha256 == theirs.sha256, kind

    recorded = RecordedIterations(store, "other", "other")
    assert (recorded.first, recorded.last) == (AT, ITERATIONS)
    origin = recorded.iteration(AT).manifest.parents["fork"]
    assert origin.key == f"run/{AT:06d}"
    behind = {node.name for node in trace(store, [recorded.ref(ITERATIONS)]).nodes}
    assert {f"iterations/run/{AT:06d}", "rollouts/run/000001"} <= behind
    with Replay.open(recorded, fork.recipe, start=AT, log=lambda line: None) as again:
        assert again.step().digest == digests[ITERATIONS]
    resumed = forked(make_phases, parent).start()
    assert resumed == state, "it continues where it was, not where it began"


def test_its_own_settings_hold_from_there(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    parent, digests = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "kept")
    fork = forked(make_phases, parent, **{"rl.update.optimizer.lr": 1e-2})
    state = one_iteration(fork, fork.start())
    assert state.digest != digests[ITERATIONS]


def test_its_rounds_may_have_another_size(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    """A round of it would straddle two epochs, at the end of which a prompt may be in both."""
    parent, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "kept")
    place = parent.start().cursor
    size = parent.train.height - 1
    fork = forked(make_phases, parent, **{"rl.rollout.prompts": size, "rl.update.mini_batches": 1})
    state = fork.start()
    assert state.cursor % size == 0
    assert 0 <= state.cursor - place < 2 * size
    assert one_iteration(fork, state).iteration == AT + 1


@pytest.mark.slow
def test_what_cannot_be_forked_is_one_sentence(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    parent, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "kept")

    def refused(**changes: Any) -> str:
        with pytest.raises(UserError) as error:
            forked(make_phases, parent, **changes).start()
        return str(error.value)

    kept = ", ".join(map(str, RecordedIterations(parent.store, "run", "r").checkpoints()))
    gone = refused(**{"rl.fork": "run@1"})
    assert f"checkpoint of iteration 1 is gone, there are those of {kept}; fork one" in gone
    assert "has no iteration 9; it has 0 to 4" in refused(
        **{"rl.fork": "run@9", "rl.iterations": 20}
    )
    assert "rl.iterations = 3 counts from the start of RL" in refused(**{"rl.iterations": AT})
    assert not parent.store.keys("checkpoint", "other/")
    assert LoopState.initial(parent.recipe.rl).iteration == 0
