"""Mini-batches and learning rates of an update."""

from pathlib import Path

import numpy as np

from rlcore.learner.schedule import optimizer_lr
from rlcore.recipes import load_recipe
from rlcore.rl.state import LoopState, validation_due
from rlcore.rl.update import mini_batch_rows

RECIPES = Path(__file__).parents[3] / "flows" / "recipes"


def test_mini_batches_never_split_a_group_and_cover_every_row() -> None:
    """A split group would learn from half its baseline."""
    uids = np.array(["c", "a", "b", "a", "c", "b", "d", "d"])
    for seed in (None, 0, 1):
        parts = mini_batch_rows(uids, 2, shuffle_seed=seed)
        assert sorted(np.concatenate(parts)) == list(range(8))
        groups = [set(uids[part]) for part in parts]
        assert not groups[0] & groups[1]


def test_mini_batches_keep_the_order_of_prompts_unless_shuffled() -> None:
    uids = np.array(["c", "c", "a", "a", "b", "b", "d", "d"])
    assert [set(uids[p]) for p in mini_batch_rows(uids, 2, shuffle_seed=None)] == [
        {"c", "a"},
        {"b", "d"},
    ]


def test_learning_rate_ticks_per_optimizer_step() -> None:
    recipe = load_recipe("quickstart", directory=RECIPES)
    total = recipe.rl.iterations * recipe.rl.update.mini_batches
    rates = [optimizer_lr(recipe.rl.update.optimizer, step, total) for step in range(total)]
    assert 0 < rates[0] < rates[9] == max(rates) == recipe.rl.update.optimizer.lr
    assert np.isclose(rates[-1], 0.1 * recipe.rl.update.optimizer.lr)


def test_best_checkpoint_is_the_later_of_equals_and_stop_needs_patience() -> None:
    rl = load_recipe("quickstart", directory=RECIPES).rl
    state = LoopState().validated(0.5, rl)
    state = LoopState(iteration=10, accuracies=state.accuracies).validated(0.996, rl)
    assert not state.finished(rl)
    state = LoopState(iteration=20, accuracies=state.accuracies, streak=state.streak)
    state = state.validated(0.996, rl)
    assert state.finished(rl)
    assert state.best(2) == [20, 10]
    assert validation_due(state, rl)
    assert not validation_due(LoopState(iteration=21), rl)
