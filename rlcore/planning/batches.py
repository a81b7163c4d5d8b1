"""Batch arithmetic: prompts x samples -> sequences -> mini-batches -> optimizer steps -> tokens."""

from dataclasses import dataclass

from schemas.data import ArithmeticSource, DataSection, Gsm8kSource
from schemas.errors import UserError
from schemas.recipe import Recipe

GSM8K_ROWS = {"train": 7473, "test": 1319}  # of the original files


@dataclass(frozen=True, slots=True)
class DataSize:
    """Rows the sources hold before any is rejected; None: known once prepare_data has counted.

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
        """Most tokens, prompts included, that one optimizer step learns from."""
        return self.sequences_per_step * self.longest


def data_size(data: DataSection) -> DataSize:
    """Return how many rows the sources hold, as far as the recipe alone says."""
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
