"""What the loop must remember between iterations. It travels in the checkpoint's manifest."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from rlcore.algorithms.kl import adaptive_coef
from schemas.algorithm import KL
from schemas.rl import RLSection


@dataclass(frozen=True, slots=True)
class LoopState:
    """The state after ``iteration`` complete iterations.

    ``cursor`` counts prompts taken from the stream; ``version`` and ``digest`` name the policy's
    weights (a critic's version is ``iteration``: it learns in every one); ``accuracies`` maps
    validated iterations (as text, for JSON) to greedy accuracy, a fraction; ``streak`` counts
    validations in a row at or above ``rl.validation.stop_at``; ``kl_coef`` is the coefficient that
    the next iteration takes KL from the reward with, None where it does not.
    """

    iteration: int = 0
    cursor: int = 0
    version: int = 0
    digest: str = ""
    accuracies: dict[str, float] | None = None
    streak: int = 0
    kl_coef: float | None = None

    @classmethod
    def initial(cls, rl: RLSection) -> "LoopState":
        """Return the state before the first iteration."""
        kl = rl.algorithm.kl
        return cls(kl_coef=kl.coef if kl.where == "reward" else None)

    @property
    def next_iteration(self) -> int:
        """The iteration under way, from 1."""
        return self.iteration + 1

    def trains_policy(self, rl: RLSection) -> bool:
        """Return whether the iteration under way trains the policy, or warms up the critic."""
        return rl.critic is None or self.iteration >= rl.critic.warmup_iterations

    def finished(self, rl: RLSection) -> bool:
        """Return whether all iterations are done or validation has held its target."""
        reached = rl.validation.stop_at is not None and self.streak >= rl.validation.patience
        return reached or self.iteration >= rl.iterations

    def validated(self, accuracy: float, rl: RLSection) -> "LoopState":
        """Return the state after validating the current weights.

        While the critic warms up the policy does not change, and equal figures are no streak.
        """
        target = rl.validation.stop_at
        moved = rl.critic is None or self.iteration > rl.critic.warmup_iterations
        return replace(
            self,
            accuracies={**(self.accuracies or {}), str(self.iteration): accuracy},
            streak=self.streak + 1 if moved and target is not None and accuracy >= target else 0,
        )

    def within(self, rl: RLSection) -> "LoopState":
        """Return the state that a run of ``rl`` alone would have come to: without what a run of
        fewer iterations validated only because it ended there."""
        figures = {int(text): figure for text, figure in (self.accuracies or {}).items()}
        state = replace(self, accuracies=None, streak=0)
        for number in sorted(figures):
            due = validation_due(replace(self, iteration=number), rl)
            if due or number == min(figures):
                state = replace(state, iteration=number).validated(figures[number], rl)
        return replace(state, iteration=self.iteration)

    def next_kl_coef(self, kl: KL, measured: float | None, num_sequences: int) -> float | None:
        """Return the coefficient after the iteration under way, which used the one before.

        ``measured``: its mean KL to the reference, nats per token, over ``num_sequences``.
        """
        if self.kl_coef is None or measured is None or kl.controller == "fixed":
            return self.kl_coef
        return adaptive_coef(
            self.kl_coef,
            measured,
            target=kl.target,
            num_sequences=num_sequences,
            horizon=kl.horizon,
        )

    def best(self, count: int = 1) -> list[int]:
        """Return the ``count`` best validated iterations, best first; ties go to the later one."""
        by_accuracy = sorted(
            ((accuracy, int(iteration)) for iteration, accuracy in (self.accuracies or {}).items()),
            reverse=True,
        )
        return [iteration for _, iteration in by_accuracy[:count]]

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return asdict(self)


def validation_due(state: LoopState, rl: RLSection) -> bool:
    """Return whether greedy validation follows iteration ``state.iteration``."""
    return state.iteration % rl.validation.every == 0 or state.iteration >= rl.iterations
