"""Memory, tried before the first iteration: a step on the longest batches that can come.

Answers grow while a policy learns, so the step that needs the most memory may be hours away. Here
it is made at once, on made-up tokens, by all that takes part in an iteration: the policy and, where
there are any, reference and critic. The caller undoes it by loading a checkpoint.
"""

from math import ceil

import numpy as np
import polars as pl

from rlcore.algorithms.objective import SftObjective
from rlcore.learner.attention import AUTO, FLASH
from rlcore.learner.spec import Term
from rlcore.models.packing import Sequences
from rlcore.models.ragged import from_arrays, to_arrays
from rlcore.rl.advantage import advantage_columns
from rlcore.rl.roles import RLWorkers
from rlcore.rl.scores import with_scores
from rlcore.rl.state import LoopState
from rlcore.rl.update import critic_request, critic_steps, policy_request, policy_steps
from schemas.outcomes import FinishReason
from schemas.recipe import Recipe


def probe_memory(
    recipe: Recipe,
    workers: RLWorkers,
    state: LoopState,
    *,
    prompts: pl.DataFrame,
    ptx: Sequences | None,
) -> None:
    """Score and train once per batch of ``longest_batches``, with the objectives of the recipe.

    Afterwards the weights, the optimizer and the random state of policy and critic are others.
    ``prompts``: those trained on, of which the shortest counts. ``ptx``: what PPO-ptx draws from.
    Raises what a learner raises that runs out of memory.
    """
    rl, budget = recipe.rl, recipe.hardware.learner.pass_tokens
    for rollouts in longest_batches(recipe, prompts, budget=budget):
        rollouts = rollouts.with_columns(iteration=pl.lit(state.next_iteration))
        frame = _with_advantages(with_scores(rollouts, rl, workers))
        steps = policy_steps(frame, recipe)
        request = policy_request(
            frame, steps, recipe=recipe, version=state.version, digest="", ptx=None
        )
        terms = [*request.mini_batches[0], *_ptx_terms(recipe, ptx, budget)]
        workers.learner.step(terms, request.lrs[0])
        if workers.critic is not None:
            request = critic_request(
                critic_steps(frame, recipe), recipe=recipe, version=state.iteration, digest=""
            )
            workers.critic.step(request.mini_batches[0], request.lrs[0])


def longest_batches(recipe: Recipe, prompts: pl.DataFrame, *, budget: int) -> list[pl.DataFrame]:
    """Return the rollouts that need the most memory: each fills a micro-batch of ``budget`` tokens
    per rank, whether or not answers share their prompt, and has no more than an optimizer step.

    The first are the longest that the recipe allows: most tokens to attend to. The second are as
    long an answer to the shortest of ``prompts``: most tokens whose logits are computed.
    """
    trained = recipe.rl.rollout.max_new_tokens * (
        recipe.environment.turns if recipe.environment else 1
    )
    longest = recipe.longest_sequence(recipe.rl.rollout.max_new_tokens)
    shortest = prompts["prompt_ids"].list.len().to_numpy().min()
    tokens = np.concatenate(to_arrays(prompts["prompt_ids"].head(longest)))
    most = _sequences_per_step(recipe)
    batches = []
    for length in sorted({longest, min(longest, int(shortest) + trained)}, reverse=True):
        # Whole sequences fill a micro-batch, or those that share their prompt, which are more.
        of_shared = (length - trained) / recipe.rl.rollout.samples + trained
        filling = max(
            _sequences_of(recipe, length, longest, budget),
            ceil(budget / of_shared) * recipe.hardware.learner.data_parallel,
        )
        ids = np.resize(tokens, length)
        batches.append(_rollouts(ids, trained, min(most, filling), recipe.rl.rollout.samples))
    return batches


def _rollouts(token_ids: np.ndarray, trained: int, count: int, samples: int) -> pl.DataFrame:
    """Return ``count`` rows in groups of ``samples``, each of its own prompt, whose last
    ``trained`` tokens are the policy's."""
    mask = np.arange(len(token_ids)) >= len(token_ids) - trained
    zeros = np.zeros(len(token_ids))
    groups = [row // samples for row in range(count)]
    return pl.DataFrame(
        {
            "trajectory_id": [f"probe-{row}" for row in range(count)],
            "uid": [f"probe-{group}" for group in groups],
            "token_ids": from_arrays(
                "token_ids", [np.roll(token_ids, group) for group in groups], pl.Int32
            ),
            "loss_mask": from_arrays("loss_mask", [mask] * count, pl.Boolean),
            "sampler_logprobs": from_arrays("sampler_logprobs", [zeros] * count, pl.Float32),
            "finish_reason": [FinishReason.STOP.value] * count,
        }
    )


def _with_advantages(frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with an advantage in every row: 1 on policy tokens of correct answers."""
    ones = [mask.astype(np.float32) for mask in to_arrays(frame["loss_mask"])]
    returns = ones if "values" in frame.columns else None
    correct = pl.Series([True] * frame.height)
    return advantage_columns(frame, advantages=ones, returns=returns, positive=correct)


def _ptx_terms(recipe: Recipe, ptx: Sequences | None, budget: int) -> list[Term]:
    """Return the term of PPO-ptx on its longest sequences, where the recipe has one."""
    if recipe.rl.ptx is None or ptx is None:
        return []
    order = np.argsort(-ptx.lengths, kind="stable")
    longest = int(ptx.lengths[order[0]])
    drawn = max(1, round(recipe.rl.ptx.sequences_per_sample * _sequences_per_step(recipe)))
    count = min(drawn, _sequences_of(recipe, longest, longest, budget))
    rows = ptx.take(np.resize(order, count))
    return [Term(rows, SftObjective(name="ptx"), coef=recipe.rl.ptx.coef)]


def _sequences_per_step(recipe: Recipe) -> int:
    """Return the most sequences of an optimizer step: the groups of a mini-batch."""
    rollout = recipe.rl.rollout
    return -(-rollout.prompts // recipe.rl.update.mini_batches) * rollout.samples


def _sequences_of(recipe: Recipe, length: int, longest: int, budget: int) -> int:
    """Return how many sequences of ``length`` tokens fill a micro-batch of each rank, where rows
    hold a sequence of ``longest``; as ``models.packing.pack`` cuts them, where "auto" may mean any
    attention and the most is taken."""
    hardware = recipe.hardware.learner
    dense = hardware.attention in (AUTO, FLASH)
    per_row = max(1, (hardware.row_tokens or (budget if dense else longest)) // length)
    return max(1, budget // (per_row * length)) * per_row * hardware.data_parallel
