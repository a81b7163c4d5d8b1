"""Time and disk of each stage, from batch arithmetic, model shape and assumed rates. Pure."""

from dataclasses import dataclass

from rlcore.planning.batches import Batch, DataSize
from rlcore.planning.estimates import (
    BYTES,
    Rates,
    checkpoint_bytes,
    iteration_table_bytes,
)
from rlcore.planning.shape import ModelShape
from schemas.recipe import Recipe
from schemas.reward_model import RewardModelSection, SampledPreferences

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


def stage_estimates(
    recipe: Recipe, shape: ModelShape, data: DataSize, sft: Batch | None, rl: Batch, rates: Rates
) -> tuple[StageEstimate, ...]:
    """Return an estimate per stage, in the order in which they run."""
    stages = [_prepare(recipe, data)]
    if sft is not None:
        stages.append(_sft(recipe, shape, sft, rates))
    if recipe.reward_model is not None:
        stages.append(_reward_model(recipe, shape, recipe.reward_model, rates))
    stages.append(_rl(recipe, shape, data, rl, rates))
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
    return completions * section.max_new_tokens, completions


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
    disk = 2 * checkpoint_bytes(shape, recipe.model.dtype) + weights
    if sft.total_steps is None:
        note = "time unknown until demonstrations are counted; set sft.max_steps to bound it"
        return StageEstimate("sft", 0.0, 0.0, disk, note)
    tokens = sft.total_steps * sft.tokens_per_step
    longest = rates.learner_s(shape.parameters, tokens, 3, recipe.hardware.learner.ranks)
    return StageEstimate("sft", rates.start_s + longest / 2, rates.start_s + longest, disk)


def _reward_model(
    recipe: Recipe, shape: ModelShape, section: RewardModelSection, rates: Rates
) -> StageEstimate:
    hardware, source = recipe.hardware, section.preferences
    weights = BYTES[recipe.model.dtype] * shape.parameters
    disk = 2 * checkpoint_bytes(shape, recipe.model.dtype) + weights
    if not isinstance(source, SampledPreferences):
        return StageEstimate("reward_model", 0.0, 0.0, disk, "time unknown until rows are counted")
    responses = (source.min_responses + source.max_responses) / 2
    sampled = (source.prompts + source.validation_prompts) * responses * source.max_new_tokens
    longest = recipe.data.max_prompt_tokens + source.max_new_tokens
    trained = section.epochs * source.prompts * responses * min(longest, section.max_tokens)
    seconds = rates.sampler_s(shape.parameters, int(sampled), hardware.rollout.engines)
    seconds += rates.learner_s(shape.parameters, trained, 3, hardware.learner.ranks)
    disk += int(responses * source.prompts) * longest * DATA_BYTES_PER_TOKEN
    return StageEstimate("reward_model", rates.start_s + seconds / 2, rates.start_s + seconds, disk)


def _rl(
    recipe: Recipe, shape: ModelShape, data: DataSize, rl: Batch, rates: Rates
) -> StageEstimate:
    section, hardware = recipe.rl, recipe.hardware
    reference = section.algorithm.kl.uses_reference
    sequences = section.rollout.prompts * section.rollout.samples
    sampled = sequences * section.rollout.max_new_tokens
    # forward for old log-probs, forward for the reference, forward and backward per epoch
    passes = 1 + (1 if reference else 0) + 3 * section.update.epochs
    tokens = sequences * rl.longest
    iteration = rates.sampler_s(shape.parameters, sampled, hardware.rollout.engines)
    iteration += rates.learner_s(shape.parameters, tokens, passes, hardware.learner.ranks)
    rows = min(section.validation.prompts, data.validation or section.validation.prompts)
    validations = section.iterations // section.validation.every + 1
    validation = rates.sampler_s(
        shape.parameters, rows * section.rollout.max_new_tokens, hardware.rollout.engines
    )
    longest = section.iterations * iteration + validations * validation
    kept = section.checkpoint.keep_last + section.checkpoint.keep_best + 1  # one being written
    disk = kept * checkpoint_bytes(shape, recipe.model.dtype)
    disk += section.iterations * iteration_table_bytes(sampled, reference=reference)
    disk += BYTES[recipe.model.dtype] * shape.parameters  # the policy itself
    return StageEstimate("rl", rates.start_s + longest / 2, rates.start_s + longest, disk)


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
