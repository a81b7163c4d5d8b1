"""Batch arithmetic: prompts x samples -> sequences -> mini-batches -> optimizer steps -> tokens."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.context import longest_sequence
from schemas.data import (
    AIME_ROWS,
    GSM8K_ROWS,
    MATH_HUB,
    MATH_ROWS,
    AimeSource,
    DataSection,
    Gsm8kSource,
    MathSource,
    Source,
)
from schemas.errors import UserError
from schemas.generated import (
    ArithmeticSource,
    EnvironmentSource,
    InstructionsSource,
    ProgramsSource,
)
from schemas.recipe import Recipe
from schemas.reward_model import Gsm8kSolutions, SampledPreferences


@dataclass(frozen=True, slots=True)
class DataSize:
    """Rows of the sources before any is rejected; None: not known before prepare_data has run.

    ``test`` has one number per source and subset, as ``evaluate.max_prompts`` caps each of them.
    ``preferences``: rows of the file that ``reward_model.preferences`` reads.
    """

    train: int | None
    validation: int | None
    test: tuple[int, ...] | None
    demonstrations: int | None
    preferences: int | None = None


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
    def last_sequences(self) -> int | None:
        """Sequences of the smaller step at the end of a round; None where there is none."""
        return (
            None
            if self.sequences_per_round is None
            else (self.sequences_per_round % self.sequences_per_step or None)
        )

    @property
    def most_tokens(self) -> int | None:
        """Most tokens, prompts included, in all optimizer steps; None where their number is
        unknown."""
        if self.total_steps is None:
            return None
        sequences = self.total_steps * self.sequences_per_step
        if self.sequences_per_round is not None:
            sequences = min(sequences, self.rounds * self.sequences_per_round)
        return sequences * self.longest

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


def all_batches(
    recipe: Recipe, demonstrations: int | None, preferences: int | None = None
) -> Batches:
    """Return the arithmetic of the recipe's stages. Raises ``UserError`` as they do."""
    sft, reward_model = sft_batch(recipe, demonstrations), reward_model_batch(recipe, preferences)
    return Batches(sft, reward_model, rl_batch(recipe))


def data_size(data: DataSection, files: Mapping[int, DataSize] | None = None) -> DataSize:
    """Return how many rows the sources hold.

    ``files``: the sizes of sources whose files have been looked at, by the source's index; of the
    others only what the recipe alone determines is known.
    """
    known, fraction = files or {}, data.validation_fraction
    return total_size(
        known.get(index) or _size_of(source, fraction, data.test_fraction)
        for index, source in enumerate(data.sources)
    )


def size_of_rows(
    split: str,
    prompts: int | None,
    demonstrations: int | None,
    fraction: float,
    test_fraction: float = 0.0,
) -> DataSize:
    """Return the size of a file of one split, None where its numbers are not known.

    ``fraction``: the share of training rows that is kept for validation; ``test_fraction``: that
    for the test.
    """
    if split != "train":
        test = None if prompts is None else (prompts,)
        held = prompts if split == "validation" else 0
        return DataSize(0, held, test if split == "test" else (), 0)
    held = 0 if not fraction else None if prompts is None else _share(prompts, fraction)
    if demonstrations is not None:
        demonstrations -= int(demonstrations * fraction) + int(demonstrations * test_fraction)
    if prompts is None:
        return DataSize(None, held, None if test_fraction else (), demonstrations)
    tested = _share(prompts, test_fraction)
    train = prompts - (held or 0) - tested
    return DataSize(train, held, (tested,) if test_fraction else (), demonstrations)


def _share(rows: int, fraction: float) -> int:
    """Return about how many of ``rows`` are held out: at least one, as ``data.split`` does."""
    return min(rows, max(1, int(rows * fraction))) if fraction else 0


def total_size(sizes: Iterable[DataSize]) -> DataSize:
    """Return the sum of ``sizes``; what is unknown in one is unknown in it."""
    all_of = list(sizes)
    tests = [size.test for size in all_of]
    return DataSize(
        _total(size.train for size in all_of),
        _total(size.validation for size in all_of),
        None if None in tests else tuple(n for test in tests for n in test or ()),
        _total(size.demonstrations for size in all_of),
    )


def _total(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def _size_of(source: Source, fraction: float, tested: float) -> DataSize:
    if isinstance(source, ArithmeticSource):
        test = (source.test, source.test_steps)
        return DataSize(source.train, source.validation, test, source.demonstrations)
    if isinstance(source, EnvironmentSource):
        sizes = source.train_size, source.validation_size, (source.test_size,)
        return DataSize(*sizes, source.demonstrations)
    if isinstance(source, ProgramsSource):
        return DataSize(source.train, source.validation, (source.test,), source.demonstrations)
    if isinstance(source, InstructionsSource):
        return DataSize(source.train, source.validation, (source.test,), 0)
    if isinstance(source, Gsm8kSource):
        rows = {split: min(n, source.limit or n) for split, n in GSM8K_ROWS.items()}
        solved = rows["train"] if source.demonstrations else 0
        train = size_of_rows("train", rows["train"], solved, fraction, tested)
        return total_size([train, size_of_rows("test", rows["test"], 0, fraction, tested)])
    if isinstance(source, MathSource):
        known = source.path is None and source.hub_name == MATH_HUB
        splits = [source.split] if source.split else list(MATH_ROWS)
        return total_size(
            [_size_of_math(source, split, known, fraction, tested) for split in splits]
        )
    if isinstance(source, AimeSource):
        rows = None if source.path else min(AIME_ROWS, source.limit or AIME_ROWS)
        return size_of_rows(source.split, rows, 0, fraction, tested)
    return size_of_rows(source.split, None, None, fraction, tested)


def _size_of_math(
    source: MathSource, split: str, known: bool, fraction: float, tested: float
) -> DataSize:
    rows = None
    if known and not source.levels and not source.types:
        rows = min(MATH_ROWS[split], source.limit or MATH_ROWS[split])
    solved = rows if source.demonstrations and split == "train" else 0
    return size_of_rows(split, rows, solved, fraction, tested)


def rl_batch(recipe: Recipe) -> Batch:
    """Return the arithmetic of RL iterations. Raises ``UserError`` as ``_batch`` does."""
    rollout, update = recipe.rl.rollout, recipe.rl.update
    sequences = rollout.prompts * rollout.samples
    steps = update.mini_batches * update.epochs
    return _batch(
        recipe,
        "data.max_prompt_tokens + rl.rollout.max_new_tokens",
        longest=longest_sequence(recipe, rollout.max_new_tokens),
        rounds=recipe.rl.iterations,
        sequences_per_round=sequences,
        steps_per_round=steps,
        total_steps=steps * recipe.rl.iterations,
        sequences_per_step=sequences // update.mini_batches,
    )


def sft_batch(recipe: Recipe, demonstrations: int | None) -> Batch | None:
    """Return the arithmetic of SFT epochs, or None when SFT is off.

    Raises ``UserError`` as ``_batch`` does, and where the demonstrations fill no batch.
    """
    sft = recipe.sft
    if not sft.enabled:
        return None
    steps = None
    if demonstrations is not None:
        if demonstrations < sft.batch_size:
            raise UserError(
                f"sft.batch_size = {sft.batch_size} exceeds the {demonstrations} training"
                " demonstrations that data.sources give; lower it, add demonstrations or set"
                " sft.enabled to false"
            )
        steps = -(-demonstrations // sft.batch_size)
    caps = (None if steps is None else steps * sft.epochs, sft.max_steps)
    return _batch(
        recipe,
        "sft.max_tokens",
        longest=sft.max_tokens,
        rounds=sft.epochs,
        sequences_per_round=demonstrations,
        steps_per_round=steps,
        total_steps=min((n for n in caps if n is not None), default=None),
        sequences_per_step=sft.batch_size,
    )


def reward_model_batch(recipe: Recipe, rows: int | None = None) -> Batch | None:
    """Return the arithmetic of the reward model's epochs, every prompt with the most responses it
    may have, or None without a reward model. ``rows``: of the file of preferences, None = unknown.

    Prompts whose responses all rank alike are left out in the run. Raises ``UserError`` as
    ``_batch`` does, where the prompts fill no batch, and when the responses of one prompt, which
    share a micro-batch, do not fit it.
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
        questions = rows or min(GSM8K_ROWS["test"], source.limit or GSM8K_ROWS["test"])
        prompts, responses = int(questions * (1 - source.validation_fraction)), 4
    elif rows is not None:
        prompts = int(rows * (1 - source.validation_fraction))
    if prompts is not None and prompts < section.batch_prompts:
        raise UserError(
            f"reward_model.batch_prompts = {section.batch_prompts} exceeds the {prompts} training"
            " prompts that reward_model.preferences give; lower it or take more preferences"
        )
    steps = None if prompts is None else -(-prompts // section.batch_prompts)
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
    one longest sequence, which under "sdpa_blocks" lies alone, or a whole micro-batch under flash
    attention), a micro-batch as many rows
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
