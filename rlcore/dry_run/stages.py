"""Time and disk of each stage, from batch arithmetic, model shape and assumed rates. Pure."""

from dataclasses import dataclass

from rlcore.dry_run.algorithm import ptx_sequences, sampled_sequences
from rlcore.dry_run.batches import Batch, Batches, DataSize
from rlcore.dry_run.estimates import (
    BYTES,
    Rates,
    checkpoint_bytes,
    iteration_table_bytes,
)
from rlcore.dry_run.shape import ModelShape
from rlcore.dry_run.states import StageState, State, What
from schemas.names import BASE_MODEL, REWARD_MODEL
from schemas.recipe import Recipe

DATA_BYTES_PER_TOKEN = 8  # prompts and demonstrations: ids and text in Parquet


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """One stage: seconds when sequences are half as long as allowed and when all are longest, and
    the bytes it leaves on disk in the latter case. ``note`` names what was not known."""

    stage: str
    half_s: float
    longest_s: float
    disk_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class InStore:
    """What a recipe's store holds of its run.

    ``states``: of each stage, in order; nothing where nobody has looked. ``unread``: why the store
    could not be asked, or empty.
    """

    states: tuple[StageState, ...] = ()
    unread: str = ""

    @property
    def stages(self) -> frozenset[str]:
        """The stages whose results a run would reuse."""
        return frozenset(one.stage for one in self.states if one.state is State.CACHED)

    @property
    def notes(self) -> dict[str, str]:
        """By other stages, what was found of them."""
        return {one.stage: one.sentence() for one in self.states if _is_noted(one)}


def _is_noted(state: StageState) -> bool:
    damaged = any(cause.what is What.DAMAGE for cause in state.causes)
    return damaged or state.state in (State.CONTINUES, State.REFUSED)


def stage_estimates(
    recipe: Recipe, shape: ModelShape, data: DataSize, batches: Batches, rates: Rates
) -> tuple[StageEstimate, ...]:
    """Return an estimate per stage, in the order in which they run."""
    stages = [_base_model(recipe, shape), _prepare(recipe, data)]
    if batches.sft is not None:
        stages.append(_sft(recipe, shape, batches.sft, rates))
    if batches.reward_model is not None:
        stages.append(_reward_model(recipe, shape, batches.reward_model, rates))
    stages.append(_rl(recipe, shape, data, batches.rl, rates))
    stages.append(_evaluate(recipe, shape, data, rates))
    weights = BYTES[recipe.export.dtype or recipe.model.dtype] * shape.parameters
    # weights are written, read back and scored once: bounded by 0.2 GB/s of disk and hashing
    seconds = 5 + 3 * weights / 0.2e9
    stages.append(StageEstimate("export", seconds, seconds, weights))
    return tuple(stages)


def evaluation_tokens(recipe: Recipe, data: DataSize) -> tuple[int, int]:
    """Return the most tokens that evaluation samples: (per checkpoint, completions of them)."""
    section = recipe.evaluate
    prompts = sum(min(n, section.max_prompts or n) for n in data.test or ())
    completions = prompts * (1 + (section.samples if section.samples > 1 else 0))
    return completions * recipe.max_turns * section.max_new_tokens, completions


def _base_model(recipe: Recipe, shape: ModelShape) -> StageEstimate:
    weights = BYTES[recipe.model.dtype] * shape.parameters
    seconds = 2 + weights / 0.2e9  # disk and hashing, as in export
    return StageEstimate(BASE_MODEL, seconds, seconds, weights)


def _prepare(recipe: Recipe, data: DataSize) -> StageEstimate:
    if data.train is None:
        return StageEstimate("prepare_data", 0.0, 0.0, 0, "rows unknown until they are counted")
    prompts = data.train + (data.validation or 0) + sum(data.test or ())
    demonstrations = data.demonstrations or 0
    tokens = prompts * recipe.data.max_prompt_tokens + demonstrations * recipe.sft.max_tokens
    seconds = 2 + (prompts + demonstrations) / 5e3  # rows/s of templating and near-duplicates
    return StageEstimate("prepare_data", seconds, seconds, tokens * DATA_BYTES_PER_TOKEN)


def _sft(recipe: Recipe, shape: ModelShape, sft: Batch, rates: Rates) -> StageEstimate:
    # one checkpoint is replaced by the next before it goes, and the policy is written at the end
    weights = BYTES[recipe.model.dtype] * shape.parameters
    disk = 2 * checkpoint_bytes(shape) + weights
    tokens = sft.most_tokens
    if tokens is None:
        note = "time unknown until demonstrations are counted; set sft.max_steps to bound it"
        return StageEstimate("sft", 0.0, 0.0, disk, note)
    longest = rates.learner_s(shape.parameters, tokens, 3, recipe.hardware.learner.ranks)
    return StageEstimate("sft", rates.start_s + longest / 2, rates.start_s + longest, disk)


def _reward_model(recipe: Recipe, shape: ModelShape, batch: Batch, rates: Rates) -> StageEstimate:
    """Sampling of the preferences, their training, the scores of what is held out."""
    section, hardware = recipe.reward_model, recipe.hardware
    weights = BYTES[recipe.model.dtype] * shape.parameters
    disk = 2 * checkpoint_bytes(shape) + weights
    tokens = batch.most_tokens
    if section is None or tokens is None:
        note = "time unknown until preferences are counted"
        return StageEstimate("reward_model", 0.0, 0.0, disk, note)
    longest = rates.learner_s(shape.parameters, tokens, 3, hardware.learner.ranks)
    source = section.preferences
    if source.kind == "samples":
        responses = (source.prompts + source.validation_prompts) * source.max_responses
        sampled = responses * source.max_new_tokens
        longest += rates.sampler_s(shape.parameters, sampled, hardware.rollout.engines)
        disk += sampled * DATA_BYTES_PER_TOKEN
    return StageEstimate("reward_model", rates.start_s + longest / 2, rates.start_s + longest, disk)


def _rl(
    recipe: Recipe, shape: ModelShape, data: DataSize, rl: Batch, rates: Rates
) -> StageEstimate:
    section, hardware = recipe.rl, recipe.hardware
    response = recipe.max_turns * section.rollout.max_new_tokens
    sequences = section.rollout.prompts * section.rollout.samples
    sampled = sampled_sequences(recipe) * response
    iteration = rates.sampler_s(shape.parameters, sampled, hardware.rollout.engines)
    longest = section.iterations * iteration + _learning_s(
        recipe, shape, sequences * rl.longest, rates
    )
    rows = min(section.validation.prompts, data.validation or section.validation.prompts)
    validations = section.iterations // section.validation.every + 1
    longest += validations * rates.sampler_s(
        shape.parameters, rows * response, hardware.rollout.engines
    )
    kept = section.checkpoint.keep_last + section.checkpoint.keep_best + 1  # one being written
    models = 1 if section.critic is None else 2
    disk = kept * models * checkpoint_bytes(shape)
    disk += section.iterations * iteration_table_bytes(
        sampled,
        sequences * response,
        reference=section.algorithm.kl.uses_reference,
        critic=section.critic is not None,
        own=section.update.epochs * (recipe.scores_own_logprobs or recipe.rl.update.fused),
    )
    disk += BYTES[recipe.model.dtype] * shape.parameters  # the policy itself
    filtered = section.algorithm.dynamic_sampling
    note = "" if filtered is None else "one generation round an iteration; filtered groups add more"
    return StageEstimate("rl", rates.start_s + longest / 2, rates.start_s + longest, disk, note)


def _learning_s(recipe: Recipe, shape: ModelShape, tokens: int, rates: Rates) -> float:
    """Seconds of all forward and backward passes over ``tokens`` an iteration.

    Each iteration: old log-probs, unless the update's forward pass gives them, and where there are
    any the reference's, the critic's values and the reward model's scores. Each epoch of policy and
    critic: three passes' worth, and one more of the policy where the update scores its own old
    log-probs.
    """
    section, ranks = recipe.rl, recipe.hardware.learner.ranks
    epochs, critic = section.update.epochs, section.critic is not None
    exact = section.algorithm.kl.estimator == "full"
    reference = section.algorithm.kl.uses_reference
    scorer = any(function.name == REWARD_MODEL for function in recipe.reward.functions)

    def seconds(passes: float, over: int) -> float:
        return rates.learner_s(shape.parameters, over, passes, ranks)

    scoring = int(not recipe.rl.update.fused)
    every = seconds(scoring + (1 + 3 * epochs if critic else 0), tokens)
    single = int(reference and not exact) + int(scorer)  # workers of one rank
    every += rates.learner_s(shape.parameters, tokens, single, 1)
    policy = (3 + recipe.scores_own_logprobs) * epochs
    update = seconds(policy + (epochs + 1 if reference and exact else 0), tokens)
    update += seconds(3, section.update.steps * ptx_sequences(recipe) * recipe.sft.max_tokens)
    return section.iterations * every + section.actor_iterations * update


def _evaluate(recipe: Recipe, shape: ModelShape, data: DataSize, rates: Rates) -> StageEstimate:
    if data.test is None:
        return StageEstimate("evaluate", 0.0, 0.0, 0, "test rows unknown until they are counted")
    tokens, _ = evaluation_tokens(recipe, data)
    checkpoints = len(recipe.evaluate.checkpoints)
    longest = checkpoints * rates.sampler_s(
        shape.parameters, tokens, recipe.hardware.rollout.engines
    )
    disk = checkpoints * tokens * 2  # text of the completions, compressed
    return StageEstimate("evaluate", rates.start_s + longest / 2, rates.start_s + longest, disk)
