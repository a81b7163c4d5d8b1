"""The order of phases in an iteration and of iterations in a run, the same for an orchestrator's
tasks and for plain calls. What a phase does is in ``Phases``."""

from collections.abc import Callable
from dataclasses import dataclass

from rlcore.rl.advantage import Advantages
from rlcore.rl.groups import DrawnGroups
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState
from schemas.artifacts import ArtifactRef

Report = Callable[[LoopState, dict[str, float]], None]


@dataclass(frozen=True, slots=True)
class Steps:
    """The five phases as callables; their signatures are those of ``Phases``' methods."""

    rollout: Callable[[Phases, LoopState, DrawnGroups], ArtifactRef] = Phases.rollout
    reward: Callable[[Phases, LoopState, ArtifactRef], ArtifactRef] = Phases.reward
    advantage: Callable[[Phases, LoopState, DrawnGroups], Advantages] = Phases.advantage
    update: Callable[[Phases, LoopState, DrawnGroups, Advantages], LoopState] = Phases.update
    sync: Callable[[Phases, LoopState], LoopState] = Phases.sync


def iterate(phases: Phases, steps: Steps, report: Report) -> LoopState:
    """Iterate until all iterations are done or validation has held its target.

    ``report`` gets the state after each iteration and that iteration's metrics. All checkpoints are
    written when it returns.
    """
    with phases.running():
        state = phases.start()
        while not state.finished(phases.recipe.rl):
            phases.checkpoints.finish_write(wait=False)  # one that failed ends the run
            groups = DrawnGroups(wanted=phases.recipe.rl.rollout.prompts)
            while not groups.full:
                rollouts = steps.rollout(phases, state, groups)
                rewards = steps.reward(phases, state, rollouts)
                groups = phases.collect(state, groups, rollouts, rewards)
            advantages = steps.advantage(phases, state, groups)
            state = steps.update(phases, state, groups, advantages)
            state = steps.sync(phases, state)
            report(state, phases.metrics.latest)
        return state
