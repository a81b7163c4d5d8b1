"""How an iteration trains policy and critic, and what it checks and records of it."""

from collections.abc import Callable

import numpy as np
import polars as pl

from rlcore.learner.spec import UpdateRequest
from rlcore.rl.fused import FusedScores, fused_scores
from rlcore.rl.guards import check_sampler_gap
from rlcore.rl.own_logprobs import own_logprobs
from rlcore.rl.run import RLRun
from rlcore.rl.update import UpdateBatch, critic_request, policy_request, update_metrics
from schemas.artifacts import ArtifactRef


class Training(RLRun):
    """The learners of one RL run at work."""

    __slots__ = ()

    def train_policy(self, batch: UpdateBatch, version: int, advantages: ArtifactRef) -> int:
        """Step the policy, of weight ``version``, once per mini-batch; return the new version.

        Raises SamplerDriftError, before the step of a fused update, where the sampler is off.
        """
        with self.metrics.timed("update_actor"):
            request = policy_request(batch, recipe=self.recipe, version=version, ptx=self.ptx)
            summed, step = None, request
            if self.recipe.rl.update.fused:
                summed, step = self._sum_gradients(batch, request), request.without_terms()
            answer = self.workers.learner.update(step)
            if summed is not None:  # written while the learner steps
                self._keep_own(summed.table(), advantages)
            result = answer.result()
            if result.old_logprobs:
                frame, gap = own_logprobs(batch, self.recipe, result.old_logprobs)
                self.metrics.add(gap)
                self._keep_own(frame, advantages)
        self.metrics.add_missing(update_metrics("actor", request, result))
        return result.version

    def start_critic(self, batch: UpdateBatch) -> Callable[[], None]:
        """Start the steps of the critic, of which there is one per mini-batch; return a function
        that waits for them."""
        critic = self.workers.critic
        assert critic is not None, "the recipe has one"
        with self.metrics.timed("update_critic"):
            request = critic_request(batch, recipe=self.recipe, version=batch.iteration - 1)
            answer = critic.update(request)

        def finish() -> None:
            with self.metrics.timed("update_critic"):
                result = answer.result()
            if self.workers.side_by_side:
                self.metrics.add({"timing_s/train_critic": result.seconds})
            metrics = update_metrics("critic", request, result)
            self.metrics.add_missing(
                {name: v for name, v in metrics.items() if not name.startswith("perf/")}
            )

        return finish

    def check_sampler(
        self, sampler: list[np.ndarray], learner: list[np.ndarray], masks: list[np.ndarray]
    ) -> None:
        """``check_sampler_gap``, its figures among the iteration's metrics."""
        bound = self.recipe.sampler_gap_bound
        self.metrics.add(check_sampler_gap(sampler, learner, masks, bound=bound))

    def _sum_gradients(self, batch: UpdateBatch, request: UpdateRequest) -> FusedScores | None:
        """Sum the gradients of a fused update; return what its passes computed, checked. None:
        see ``fused_scores``."""
        scores = fused_scores(batch, request, recipe=self.recipe, learner=self.workers.learner)
        if scores is not None:
            self.check_sampler(scores.sampler, scores.old, scores.masks)
            self.metrics.add(scores.metrics)
        return scores

    def _keep_own(self, frame: pl.DataFrame, advantages: ArtifactRef) -> None:
        tables, parents = {"own_logprobs": frame}, {"advantages": advantages}
        self.records.replace("own_logprobs", advantages.key, tables, parents)
