"""Records are found again where they were made of the same, and in the same way."""

from collections.abc import Callable

from rlcore.recipes.load import with_learner
from rlcore.rl.groups import DrawnGroups
from rlcore.rl.phases import Phases
from rlcore.rl.records import PACKED_FOR, RecordedIterations
from tests.rlcore.rl.test_records_history import digits, one_iteration

Make = Callable[..., Phases]


def test_advantages_are_made_anew_for_passes_of_another_size(make_phases: Make) -> None:
    """Log-probs of another packing differ by rounding, which would be in the first ratio."""
    phases = make_phases("quickstart", digits, {"rl.iterations": 2})
    state = phases.start()
    groups = DrawnGroups(wanted=phases.recipe.rl.rollout.prompts)
    rollouts = phases.rollout(state, groups)
    groups = phases.collect(state, groups, rollouts, phases.reward(state, rollouts))
    first = phases.advantage(state, groups).ref
    packed_for = phases.recipe.hardware.learner.micro_batch_tokens
    assert phases.store.manifest(first).metadata[PACKED_FOR] == packed_for != 512
    phases.recipe = with_learner(phases.recipe, micro_batch_tokens=512)
    again = phases.store.manifest(phases.advantage(state, groups).ref)
    assert again.metadata[PACKED_FOR] == 512
    state = one_iteration(phases, state)
    assert RecordedIterations(phases.store, "run", "r").packed_for(1) == 512
