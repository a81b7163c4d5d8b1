"""How the groups of an iteration are drawn: rounds of rollout and reward until the batch is full.

A round is a function of a ``Draw`` and of the rounds before it; what an earlier attempt recorded of
it is found again.
"""

from dataclasses import dataclass
from typing import Any

import polars as pl

from rlcore.algorithms.seeds import stream_seed
from rlcore.engines.types import Sampling
from rlcore.rewards.types import is_finished
from rlcore.rewards.unscored_rows import check_unscored
from rlcore.rl.advantage import signal_of
from rlcore.rl.batch import drawn
from rlcore.rl.groups import DrawnGroups, split_by_signal
from rlcore.rl.metrics import StepMetrics
from rlcore.rl.prompts import PromptStream
from rlcore.rl.records import RunRecords
from rlcore.rl.reward import score_rollouts
from rlcore.rl.roles import RLWorkers
from rlcore.rl.rollout import episodes_frame, rollouts_frame
from rlcore.rl.scores import with_scores
from rlcore.rl.state import Draw
from rlcore.rollout.episodes import Episodes, collect, in_order
from rlcore.rollout.trajectories import Request
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Drawing:
    """The first two phases of an iteration, over the parts of a run (``Phases``)."""

    recipe: Recipe
    records: RunRecords
    metrics: StepMetrics
    stream: PromptStream
    workers: RLWorkers
    tokenizer: Any
    stop_ids: tuple[int, ...]
    episodes: Episodes | None

    def rollout(self, draw: Draw, groups: DrawnGroups) -> ArtifactRef:
        """Sample one round of trajectories, and greedy baselines where wanted; record them."""
        name = self.records.name(draw.iteration, groups.suffix)
        with self.metrics.timed("gen"):
            weights = self.records.parent(draw.sampler, "weights")
            if found := self.records.find("rollouts", name, weights):
                sampled = self.records.table(found, "rollouts")
                # Recorded by an earlier attempt, which may have been at other weights here.
                if set(sampled["weight_digest"]) == {draw.stamp.digest}:
                    return found
                self.records.log(f"rollouts {name} came from other weights; they are sampled again")
            prompts = self.stream.round(cursor=draw.cursor, drawn=groups.drawn)
            tables = self._sample(prompts, draw.iteration)
            if self.recipe.rl.rollout.greedy_baseline:
                greedy = self._sample(prompts, draw.iteration, greedy=True)
                tables["baselines"] = greedy["rollouts"]
                if self.episodes is not None:
                    tables["episodes"] = pl.concat([tables["episodes"], greedy["episodes"]])
            return self.records.put("rollouts", name, tables, weights)

    def reward(self, rollouts: ArtifactRef) -> ArtifactRef:
        """Score one round's trajectories, and its baselines, in the reward workers."""
        with self.metrics.timed("reward"):
            parents = {"rollouts": rollouts}
            if found := self.records.find("rewards", rollouts.key, parents):
                return found
            table_of, tables = self.records.table, {}
            episodes = table_of(rollouts, "episodes") if "episodes" in rollouts.rows else None
            for table, scored in (("rollouts", "rewards"), ("baselines", "baseline_rewards")):
                if table in rollouts.rows:
                    sampled = table_of(rollouts, table)
                    prompts = self.stream.prompts.of_uids(sampled["uid"].to_list())
                    tables[scored] = score_rollouts(
                        sampled, prompts, self.workers.rewards, episodes
                    )
            check_unscored(tables["rewards"].select("outcome", "detail").rows(), self.recipe.reward)
            return self.records.put("rewards", rollouts.key, tables, parents)

    def collect(
        self, draw: Draw, groups: DrawnGroups, rollouts: ArtifactRef, rewards: ArtifactRef
    ) -> DrawnGroups:
        """Return ``groups`` with a round's groups added: all of them, or those with a signal."""
        section = self.recipe.rl.algorithm.dynamic_sampling
        frame = drawn(self.records.table, [(rollouts, rewards)])
        places = self.stream.round_size
        if section is None:
            uids = frame["uid"].unique(maintain_order=True).to_list()
            return groups.with_round(rollouts, rewards, passing=uids, failing=[], drawn=places)
        if section.metric == "final_score" and draw.kl_coef is not None:
            frame = with_scores(frame, self.recipe.rl, self.workers)
        signal = signal_of(frame, section.metric, self.recipe, draw.kl_coef)
        passing, failing, unscored = split_by_signal(
            frame["uid"].to_numpy(), signal, tolerance=section.tolerance
        )
        grown = groups.with_round(
            rollouts, rewards, passing=passing, failing=failing, unscored=unscored, drawn=places
        )
        left = self.stream.round(cursor=draw.cursor, drawn=grown.drawn)
        return grown.close_if_exhausted(section, more_prompts=left.height > 0)

    def _sample(
        self, prompts: pl.DataFrame, iteration: int, *, greedy: bool = False
    ) -> dict[str, pl.DataFrame]:
        """Return table ``rollouts`` of ``rl.rollout.samples`` trajectories per prompt, a row each,
        and table ``episodes`` where the policy plays them.

        The seed of a trajectory is a function of (recipe seed, iteration, uid, sample), so it can
        be drawn again alone. ``greedy``: one trajectory per prompt at temperature 0 instead, the
        baseline of ReMax (arXiv 2310.10505).
        """
        section = self.recipe.rl.rollout
        requests = [
            Request(
                f"{iteration:06d}-{prompt['uid']}-{'greedy' if greedy else f'{sample:02d}'}",
                prompt,
                sample,
                stream_seed(self.recipe.seed, "rollout", iteration, prompt["uid"], sample),
            )
            for prompt in prompts.iter_rows(named=True)
            for sample in range(1 if greedy else section.samples)
        ]
        sampling = Sampling(
            temperature=0.0 if greedy else section.temperature,
            top_p=section.top_p,
            top_k=section.top_k,
            max_new_tokens=section.max_new_tokens,
            stop_token_ids=self.stop_ids,
            stop=section.stop,
        )
        sampled, engines = [], self.workers.engines
        for trajectory in collect(
            requests, sampling, engines, self.tokenizer, self.episodes, schedule=section.schedule
        ):
            # The reward workers score it while the engines sample the others.
            if is_finished(row := trajectory.reward_row()):
                self.workers.rewards.start(row)
            sampled.append(trajectory)
        trajectories = in_order(requests, sampled)
        tables = {"rollouts": rollouts_frame(trajectories, iteration)}
        if self.episodes is not None:
            tables["episodes"] = episodes_frame(trajectories)
        return tables
