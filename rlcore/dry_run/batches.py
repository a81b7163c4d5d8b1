"""Batch arithmetic: prompts x samples -> sequences -> mini-batches -> optimizer steps -> tokens."""

from dataclasses import dataclass

from schemas.data import ArithmeticSource, DataSection, Gsm8kSource
from schemas.errors import UserError
from schemas.recipe import Recipe
from schemas.reward_model import Gsm8kSolutions, SampledPreferences

GSM8K_ROWS = {"train": 7473, "test": 1319}  # of the original files


@dataclass(frozen=True, slots=True)
class DataSize:
    """Rows of the sources before any is rejected; None: not known before prepare_data has run.

    ``test`` has one number per source and subset, as ``evaluate.max_prompts`` caps each of them.
    """

    train: int | None
    validation: int | None
    test: tuple[int, ...] | None
    demonstrations: int | None


@dataclass(frozen=True, slots=True)
class Batch:
    """The arithmetic of one optimizer step and of the rounds of steps around it.

    A round is an iteration of RL or an epoch of SFT. ``longest``: tokens of the longest legal
    sequence; the micro-batches are those of one rank when every sequence is that long.
    """

    rounds: int
    sequences_per_round: int | None
    steps_per_round: int | None
    total_steps: int | None
    sequences_per_step: int
    sequences_per_rank: int
    longest: int
    row_tokens: int
    sequences_per_micro_batch: int
    micro_batches: int

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of the fullest micro-batch of longest sequences."""
        return min(self.sequences_per_micro_batch, self.sequences_per_rank) * self.longest

    @property
    def tokens_per_step(self) -> int:
        """Most tokens, prompts included, in one optimizer step."""
        return self.sequences_per_step * self.longest


@dataclass(frozen=True, slots=True)
class Batches:
    """The arithmetic of every stage that trains; None for a stage that is off."""

    sft: Batch | None
    reward_model: Batch | None
    rl: Batch

    @property
    def fullest(self) -> Batch:
        """The stage whose full micro-batch holds the most tokens."""
        known = [batch for batch in (self.sft, self.reward_model, self.rl) if batch is not None]
        return max(known, key=lambda batch: batch.micro_batch_tokens)


def all_batches(recipe: Recipe, demonstrations: int | None) -> Batches:
    """Return the arithmetic of the recipe's stages. Raises ``UserError`` as they do."""
    return Batches(sft_batch(recipe, demonstrations), reward_model_batch(recipe), rl_batch(recipe))


def data_size(data: DataSection) -> DataSize:
    """Return how many rows the sources hold, as far as the recipe alone determines it."""
    train = validation = demonstrations = 0
    test: list[int] = []
    for source in data.sources:
        if isinstance(source, ArithmeticSource):
            train += source.train
            validation += source.validation
            test += [source.test, source.test_steps]
            demonstrations += source.demonstrations
        elif isinstance(source, Gsm8kSource):
            rows = {k: min(n, source.limit or n) for k, n in GSM8K_ROWS.items()}
            held_out = int(rows["train"] * data.validation_fraction)
            train += rows["train"] - held_out
            validation += held_out
            test.append(rows["test"])
            demonstrations += rows["train"] - held_out if source.demonstrations else 0
        else:
            return DataSize(None, None, None, None)
    return DataSize(train, validation, tuple(test), demonstrations)


def rl_batch(recipe: Recipe) -> Batch:
    """Return the arithmetic of RL iterations. Raises ``UserError`` as ``_batch`` does."""
    rollout, update = recipe.rl.rollout, recipe.rl.update
    sequences = rollout.prompts * rollout.samples
    steps = update.mini_batches * update.epochs
    return _batch(
        recipe,
        "data.max_prompt_tokens + rl.rollout.max_new_tokens",
        longest=recipe.data.max_prompt_tokens + rollout.max_new_tokens,
        rounds=recipe.rl.iterations,
        sequences_per_round=sequences,
        steps_per_round=steps,
        total_steps=steps * recipe.rl.iterations,
        sequences_per_step=sequences // update.mini_batches,
    )


def sft_batch(recipe: Recipe, demonstrations: int | None) -> Batch | None:
    """Return the arithmetic of SFT epochs, or None when SFT is off.

    A last partial batch is dropped. Raises ``UserError`` as ``_batch`` does.
    """
    sft = recipe.sft
    if not sft.enabled:
        return None
    steps = None if demonstrations is None else demonstrations // sft.batch_size
    known = [n for n in (None if steps is None else steps * sft.epochs, sft.max_steps) if n]
    return _batch(
        recipe,
        "sft.max_tokens",
        longest=sft.max_tokens,
        rounds=sft.epochs,
        sequences_per_round=demonstrations,
        steps_per_round=steps,
        total_steps=min(known, default=None),
        sequences_per_step=sft.batch_size,
    )


def reward_model_batch(recipe: Recipe) -> Batch | None:
    """Return the arithmetic of the reward model's epochs, every prompt with the most responses it
    may have, or None without a reward model.

    Prompts whose responses all rank alike are left out in the run. Raises ``UserError`` as
    ``_batch`` does, and when the responses of one prompt, which share a micro-batch, do not fit it.
    """
    section = recipe.reward_model
    if section is None:
        return None
    source, longest = section.preferences, section.max_tokens
    prompts, responses = None, 2
    if isinstance(source, SampledPreferences):
        prompts, responses = source.prompts, source.max_responses
        longest = min(longest, recipe.data.max_prompt_tokens + source.max_new_tokens)
    elif isinstance(source, Gsm8kSolutions):
        questions = min(GSM8K_ROWS["test"], source.limit or GSM8K_ROWS["test"])
        prompts, responses = int(questions * (1 - source.validation_fraction)), 4
    steps = None if prompts is None else prompts // section.batch_prompts
    batch = _batch(
        recipe,
        "reward_model.max_tokens",
        longest=longest,
        rounds=section.epochs,
        sequences_per_round=None if prompts is None else prompts * responses,
        steps_per_round=steps,
        total_steps=None if steps is None else steps * section.epochs,
        sequences_per_step=section.batch_prompts * responses,
    )
    if responses > batch.sequences_per_micro_batch:
        raise UserError(
            f"hardware.learner.micro_batch_tokens = {recipe.hardware.learner.micro_batch_tokens}"
            f" does not hold the {responses} responses of {longest} tokens that one prompt of"
            " reward_model may have; raise it to at least"
            f" {responses * longest}"
        )
    return batch


def _batch(
    recipe: Recipe,
    length_path: str,
    *,
    longest: int,
    rounds: int,
    sequences_per_round: int | None,
    steps_per_round: int | None,
    total_steps: int | None,
    sequences_per_step: int,
) -> Batch:
    """Cut a step into ranks and micro-batches.

    As ``models.packing.pack`` does: a row holds as many sequences as ``row_tokens`` allows (unset:
    one longest sequence, or a whole micro-batch under flash attention), a micro-batch as many rows
    as ``micro_batch_tokens`` allows. Raises ``UserError`` when one longest sequence fits neither.
    """
    hardware = recipe.hardware.learner
    budget = hardware.micro_batch_tokens
    row_tokens = hardware.row_tokens or (
        budget if hardware.attention == "flash_attention_2" else longest
    )
    for name, limit in (("micro_batch_tokens", budget), ("row_tokens", row_tokens)):
        if longest > limit:
            raise UserError(
                f"hardware.learner.{name} = {limit} is below {length_path} = {longest}, the longest"
                f" legal sequence; raise it to at least {longest}"
            )
    if row_tokens > budget:
        raise UserError(
            f"hardware.learner.row_tokens = {row_tokens} exceeds micro_batch_tokens = {budget};"
            " lower it to that or raise micro_batch_tokens"
        )
    per_row = row_tokens // longest
    per_micro_batch = budget // (per_row * longest) * per_row
    per_rank = -(-sequences_per_step // hardware.ranks)
    return Batch(
        rounds=rounds,
        sequences_per_round=sequences_per_round,
        steps_per_round=steps_per_round,
        total_steps=total_steps,
        sequences_per_step=sequences_per_step,
        sequences_per_rank=per_rank,
        longest=longest,
        row_tokens=per_row * longest,
        sequences_per_micro_batch=per_micro_batch,
        micro_batches=-(-per_rank // per_micro_batch),
    )
