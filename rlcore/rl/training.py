"""One update in order: requests to policy and critic, the check of the sampler before a fused step,
and what is recorded of it."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from rlcore.models.packing import Sequences
from rlcore.results.metrics import MEMORY
from rlcore.rl.metrics import MetricsLog
from rlcore.rl.own_logprobs import KIND, fused_scores, own_logprobs
from rlcore.rl.records import RunRecords
from rlcore.rl.roles import RLWorkers
from rlcore.rl.update import (
    critic_request,
    critic_steps,
    iteration_of,
    policy_request,
    policy_steps,
    update_metrics,
)
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe


@dataclass(frozen=True, slots=True)
class RLTraining:
    """The learners of an RL run at work. ``ptx``: what PPO-ptx draws from, if the recipe has it."""

    recipe: Recipe
    workers: RLWorkers
    records: RunRecords
    metrics: MetricsLog
    ptx: Sequences | None

    def train_policy(self, frame: pl.DataFrame, version: int, advantages: ArtifactRef) -> int:
        """Step the policy, of weight ``version``, once per mini-batch; return the new version.

        ``frame``: the trajectories that train, with their ``advantages``. Raises SamplerDriftError,
        before the step of a fused update, where the sampler is off.
        """
        recipe, learner = self.recipe, self.workers.learner
        with self.metrics.timed("update_actor"):
            steps = policy_steps(frame, recipe)
            # The digest names the batch: asked again, the learner returns what it recorded for this
            # version and batch instead of stepping twice.
            request = policy_request(
                frame,
                steps,
                recipe=recipe,
                version=version,
                digest=advantages.sha256,
                ptx=self.ptx,
            )
            fused = None
            if recipe.rl.update.fused:
                fused = fused_scores(frame, request, recipe=recipe, learner=learner)
            answer = learner.update(request)
            if fused is not None:  # written while the learner steps
                table, metrics = fused
                self.metrics.add(metrics)
                self._keep_own(table, advantages)
            result = answer.result()
            if result.old_logprobs:
                table, gap = own_logprobs(frame, steps, result.old_logprobs)
                self.metrics.add(gap)
                self._keep_own(table, advantages)
        self.metrics.add_missing(update_metrics("actor", request, result))
        return result.version

    def start_critic(self, frame: pl.DataFrame, advantages: ArtifactRef) -> Callable[[], None]:
        """Start the steps of the critic, of which there is one per mini-batch; return a function
        that waits for them."""
        critic = self.workers.critic
        assert critic is not None, "the recipe has one"
        with self.metrics.timed("update_critic"):
            request = critic_request(
                critic_steps(frame, self.recipe),
                recipe=self.recipe,
                # It learns in every iteration, also in those in which the policy does not.
                version=iteration_of(frame) - 1,
                digest=advantages.sha256,
            )
            answer = critic.update(request)

        def finish() -> None:
            with self.metrics.timed("update_critic"):
                result = answer.result()
            if self.workers.side_by_side:
                self.metrics.add({"timing_s/train_critic": result.seconds})
            metrics = update_metrics("critic", request, result)
            self.metrics.add_missing(
                {
                    name: value
                    for name, value in metrics.items()
                    if not name.startswith("perf/") or name.startswith(MEMORY)
                }
            )

        return finish

    def _keep_own(self, table: pl.DataFrame, advantages: ArtifactRef) -> None:
        self.records.put(KIND, advantages.key, {KIND: table}, {"advantages": advantages})
