"""Whether RL of more iterations may go on where RL of fewer has ended: its learning rates decide.

Prompts, seeds and the KL coefficient are functions of the iteration alone, and validation that was
due only because RL ended is left out again (``LoopState.within``).
"""

from rlcore.rl.update import step_rates
from schemas.optimizer import Optimizer
from schemas.recipe import Recipe


def why_from_zero(recipe: Recipe, before: int, done: int) -> str | None:
    """Return why RL of ``recipe`` cannot go on after iteration ``done`` of a run that was to have
    ``before`` iterations; None where it can, as every step had the learning rate that it has
    now."""
    rl = recipe.rl
    shorter = rl.model_copy(update={"iterations": before})
    warmup = rl.critic.warmup_iterations if rl.critic else 0
    trained = [("rl.update.optimizer", rl.update.optimizer, warmup)]
    if rl.critic is not None:
        trained.append(("rl.critic.optimizer", rl.critic.optimizer, 0))
    for path, optimizer, rested in trained:
        for update in range(max(0, done - rested)):
            then = step_rates(shorter, optimizer, update, before - rested)
            now = step_rates(rl, optimizer, update, rl.iterations - rested)
            if then != now:
                number = update + rested + 1
                return _sentence(path, optimizer, number, then, now, before, rl.iterations)
    return None


def _sentence(
    path: str,
    optimizer: Optimizer,
    iteration: int,
    then: list[float],
    now: list[float],
    before: int,
    total: int,
) -> str:
    old, new = next(pair for pair in zip(then, now, strict=True) if pair[0] != pair[1])
    return (
        f"{path}.schedule (kind = '{optimizer.schedule.kind}') depends on rl.iterations: the"
        f" learning rate of iteration {iteration} was {old:.3g} of {before} and is {new:.3g} of"
        f" {total}; kind = 'constant' with warmup_steps would go on"
    )
