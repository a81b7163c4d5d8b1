"""What the algorithm adds to the arithmetic of an iteration, as sentences."""

from rlcore.preflight.batches import Batch, ptx_sequences
from schemas.recipe import Recipe
from schemas.rl import FUSED_SAMPLE


def algorithm_lines(recipe: Recipe, rl: Batch) -> list[str]:
    """Return a sentence for each part of the algorithm that the plain arithmetic leaves out."""
    return [
        *_sampling_lines(recipe),
        *_critic_lines(recipe, rl),
        *_loss_lines(recipe, rl),
    ]


def _sampling_lines(recipe: Recipe) -> list[str]:
    section, rollout = recipe.rl, recipe.rl.rollout
    lines = []
    if rollout.greedy_baseline:
        lines.append(
            f"greedy baseline: {rollout.prompts:,} greedy answers an iteration besides its"
            f" {rollout.prompts * rollout.samples:,} samples, scored but not trained on"
        )
    filtered = section.algorithm.dynamic_sampling
    if filtered is not None:
        drawn = rollout.prompts * filtered.batch_factor
        cap = f"{filtered.max_rounds} rounds" if filtered.max_rounds > 0 else "as many as it takes"
        most = f" ({drawn * filtered.max_rounds:,} prompts)" if filtered.max_rounds > 0 else ""
        lines.append(
            f"dynamic sampling: a round draws {filtered.batch_factor} x {rollout.prompts:,} ="
            f" {drawn:,} new prompts x {rollout.samples} samples ="
            f" {drawn * rollout.samples:,} sequences; rounds go on until {rollout.prompts:,}"
            f" prompts differ in {filtered.metric.replace('_', ' ')}, at most {cap}{most}, then"
            f" '{filtered.on_exhausted}'"
        )
    overlong = section.algorithm.overlong
    if overlong is not None:
        limit = overlong.max_tokens or rollout.max_new_tokens
        cache = limit // 5 if overlong.cache_tokens is None else overlong.cache_tokens
        lines.append(
            f"overlong shaping: responses lose up to {overlong.factor:g} between {limit - cache:,}"
            f" and {limit:,} tokens"
        )
    return lines


def _critic_lines(recipe: Recipe, rl: Batch) -> list[str]:
    critic = recipe.rl.critic
    if critic is None:
        return []
    steps = rl.steps_per_round or 0
    warmup = critic.warmup_iterations
    alone = f", the first {warmup:,} iterations alone" if warmup else ""
    return [
        f"critic: the same mini-batches -> {steps} step(s) an iteration, {steps * rl.rounds:,} in"
        f" all{alone}; the policy takes {steps * recipe.rl.actor_iterations:,} steps in"
        f" {recipe.rl.actor_iterations:,} iterations; starts from the"
        f" {critic.init.replace('_', ' ')}"
    ]


def _loss_lines(recipe: Recipe, rl: Batch) -> list[str]:
    algorithm, ptx = recipe.rl.algorithm, recipe.rl.ptx
    lines = []
    if algorithm.kl.uses_reference:
        held = ", exact over the vocabulary" if algorithm.kl.estimator == "full" else ""
        lines.append(
            f"KL: {algorithm.kl.estimator} in the {algorithm.kl.where}, coefficient"
            f" {algorithm.kl.coef:g} ({algorithm.kl.controller}){held}: one more forward pass, of"
            " the reference"
        )
    if recipe.scores_own_logprobs:
        epochs = recipe.rl.update.epochs
        passes = "one more forward pass" if epochs == 1 else f"{epochs} more forward passes"
        lines.append(
            "old log-probs: the update scores its own micro-batches (rl.update.old_logprobs ="
            f" own): {passes} over the rows that train"
        )
    if recipe.rl.update.fused:
        lines.append(
            "old log-probs: those of the update's own forward pass (rl.update.old_logprobs ="
            f" fused); of the rows that do not train, {FUSED_SAMPLE} are scored to check the"
            " sampler"
        )
    if algorithm.positive_nll.coef > 0:
        lines.append(
            f"positive examples: {algorithm.positive_nll.coef:g} x NLL of the tokens of correct"
            " samples, in the same pass"
        )
    if ptx is not None:
        count = ptx_sequences(recipe)
        what, longest = (
            ("demonstrations", recipe.sft.max_tokens)
            if ptx.path is None
            else ("texts", ptx.max_tokens)
        )
        lines.append(
            f"ptx: {ptx.sequences_per_sample:g} x {rl.sequences_per_step:,} = {count:,}"
            f" {what} added to each policy step, at most {count * longest:,}"
            f" tokens, coefficient {ptx.coef:g}"
        )
    return lines


def reward_model_lines(recipe: Recipe, batch: Batch | None) -> list[str]:
    """Return how preferences become optimizer steps of the reward model; nothing without one."""
    section = recipe.reward_model
    if section is None or batch is None:
        return []
    source = section.preferences
    if source.kind == "samples":
        whence = (
            f"{source.prompts:,} prompts x {source.min_responses} to {source.max_responses} samples"
            f" of the policy (and {source.validation_prompts:,} held-out prompts)"
        )
    else:
        known = batch.sequences_per_round
        whence = "a file of unknown length" if known is None else f"{known:,} responses of a file"
    steps = (
        "an unknown number of" if batch.total_steps is None else f"at most {batch.total_steps:,}"
    )
    return [
        f"reward model: {whence} -> all pairs of a prompt in one of {section.batch_prompts:,} batch"
        f" elements x {section.epochs} epoch(s) -> {steps} optimizer steps of at most"
        f" {batch.sequences_per_step:,} responses, {batch.longest:,} tokens each"
    ]
