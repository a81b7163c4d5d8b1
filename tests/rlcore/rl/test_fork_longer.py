"""RL of more iterations continues where RL of fewer ended, and comes out as in one go."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.rl.fork import why_from_zero
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState
from rlcore.rl.validation import Validation
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.rl.test_records_history import digits, one_iteration

pytestmark = pytest.mark.timeout(180)
SCHEDULE = "rl.update.optimizer.schedule"
CONSTANT = {f"{SCHEDULE}.kind": "constant", f"{SCHEDULE}.warmup_steps": 2}


def through(phases: Phases) -> tuple[LoopState, list[int]]:
    """Return the state that RL ends with, and the iterations that it did."""
    state, done = phases.start(), []
    while not state.finished(phases.recipe.rl):
        state = one_iteration(phases, state)
        done.append(state.iteration)
    phases.checkpoints.finish_write()
    return state, done


def test_more_iterations_are_those_of_one_go(
    make_phases: Callable[..., Phases], tmp_path: Path
) -> None:
    """The shorter run validates iteration 3 only because it ends there: 3 may not be chosen."""
    store, other = (ArtifactStore(tmp_path / name) for name in ("two", "one"))

    def run(iterations: int, store: ArtifactStore) -> tuple[LoopState, list[int]]:
        over = {**CONSTANT, "rl.iterations": iterations}
        return through(make_phases("quickstart", digits, over, store=store))

    ended, _ = run(3, store)
    assert set(ended.accuracies or {}) == {"0", "2", "3"}
    went_on, done = run(5, store)
    assert done == [4, 5]
    at_once, _ = run(5, other)
    assert went_on == at_once


def test_the_best_of_a_longer_run_is_kept_where_a_shorter_one_ended(
    make_phases: Callable[..., Phases], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shorter run's best was validated only because it ended there: a longer one chooses the
    best before it, whose checkpoint was dropped. RL could never be ended."""
    store = ArtifactStore(tmp_path / "store")
    kept = {"rl.checkpoint.keep_last": 1, "rl.validation.every": 2}

    figures, run = iter([0.1, 0.5, 0.6, 0.2, 0.2]), Validation.run  # of 0, 2, 3; 4, 5
    monkeypatch.setattr(
        Validation, "run", lambda self, *record: (next(figures), run(self, *record)[1])
    )

    def phases(iterations: int) -> Phases:
        over = {**CONSTANT, **kept, "rl.iterations": iterations}
        return make_phases("quickstart", digits, over, store=store)

    through(phases(3))
    longer = phases(5)
    ended, _ = through(longer)
    assert ended.best() == [2]
    longer.finish(ended, tmp_path / "policy")
    assert (tmp_path / "policy" / "config.json").is_file()


def test_a_longer_run_that_is_ended_where_it_stopped_is_validated_there(
    make_phases: Callable[..., Phases], tmp_path: Path
) -> None:
    """Its last policy would not be among those that the best is chosen from."""
    store, other = (ArtifactStore(tmp_path / name) for name in ("two", "one"))

    def phases(iterations: int, store: ArtifactStore) -> Phases:
        over = {**CONSTANT, "rl.iterations": iterations}
        return make_phases("quickstart", digits, over, store=store)

    longer = phases(9, store)
    state = longer.start()
    for _ in range(3):
        state = one_iteration(longer, state)
    longer.checkpoints.finish_write()
    assert set(state.accuracies or {}) == {"0", "2"}
    ended, done = through(phases(3, store))
    assert done == []
    assert ended == through(phases(3, other))[0]
    assert set(ended.accuracies or {}) == {"0", "2", "3"}


def test_a_shorter_run_once_more_leaves_what_a_longer_one_left(
    make_phases: Callable[..., Phases], tmp_path: Path
) -> None:
    store = ArtifactStore(tmp_path / "store")
    through(make_phases("quickstart", digits, {"rl.iterations": 4}, store=store))
    left = [key for key in store.keys("checkpoint") if int(key.rpartition("/")[2]) > 1]
    again, done = through(make_phases("quickstart", digits, {"rl.iterations": 1}, store=store))
    assert (again.iteration, done[-1:]) == (1, [1])
    assert set(left) <= set(store.keys("checkpoint"))


@pytest.mark.parametrize(
    ("settings", "before", "done", "says"),
    [
        ({"kind": "constant"}, 60, 60, None),
        ({"kind": "constant", "warmup_steps": 8}, 60, 60, None),
        ({"kind": "constant", "warmup_steps": None, "warmup_ratio": 0.1}, 60, 60, "iteration 1"),
        ({"kind": "constant", "warmup_steps": 2000}, 60, 60, "iteration 1 had"),
        ({"kind": "linear"}, 60, 60, "kind = 'linear'.*of 60, iteration 1 had .* than of 100"),
        ({"kind": "cosine"}, 60, 1, "kind = 'cosine'"),
        ({"kind": "wsd", "decay_fraction": 0.1}, 60, 50, None),
        ({"kind": "wsd", "decay_fraction": 0.1}, 60, 60, "iteration 55"),
    ],
)
def test_the_rates_of_what_is_done_decide(
    settings: dict[str, Any], before: int, done: int, says: str | None
) -> None:
    changes = {f"{SCHEDULE}.{name}": value for name, value in settings.items()}
    changes |= {"rl.iterations": 100, "rl.update.mini_batches": 2}
    if "warmup_steps" not in settings:
        changes[f"{SCHEDULE}.warmup_steps"] = 0
    recipe = load_recipe("quickstart", changes, directory=RECIPES)
    found = why_from_zero(recipe, before, done)
    if says is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(says, found), found


def test_the_schedule_of_the_critic_counts_too() -> None:
    changes = {"rl.iterations": 100, f"{SCHEDULE}.kind": "constant"}
    changes[f"{SCHEDULE}.warmup_steps"] = 0
    constant = {"kind": "constant", "warmup_steps": 0}
    for kind, goes_on in (("constant", True), ("linear", False)):
        critic = {"rl.critic.optimizer.schedule": {**constant, "kind": kind}}
        recipe = load_recipe("quickstart-ppo", changes | critic, directory=RECIPES)
        assert (why_from_zero(recipe, 60, 60) is None) is goes_on


def test_what_was_validated_at_the_end_only_counts_no_longer() -> None:
    changes = {"rl.iterations": 9, "rl.validation.every": 2, "rl.validation.stop_at": 0.5}
    rl = load_recipe("quickstart", changes, directory=RECIPES).rl
    figures = {"0": 0.1, "2": 0.6, "3": 0.9}
    ended = LoopState(iteration=3, accuracies=figures, streak=2)
    assert ended.within(rl) == LoopState(iteration=3, accuracies={"0": 0.1, "2": 0.6}, streak=1)
    begun = LoopState(iteration=5, accuracies={"5": 0.6}, streak=1)
    assert begun.within(rl) == begun, "where a run begins it always validates"
