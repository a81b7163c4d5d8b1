"""Batch arithmetic: prompts x samples -> sequences -> mini-batches -> optimizer steps -> tokens."""

from dataclasses import dataclass

from rlcore.plan.data_size import DataSize
from rlcore.recipes.load import with_learner
from schemas.data import GSM8K_ROWS
from schemas.errors import UserError
from schemas.names import REWARD_MODEL, is_model
from schemas.recipe import Recipe
from schemas.reward_model import FilePreferences, Gsm8kSolutions, SampledPreferences


@dataclass(frozen=True, slots=True)
class BatchPlan:
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
        if self.sequences_per_round is None:
            return None
        return self.sequences_per_round % self.sequences_per_step or None

    @property
    def most_tokens(self) -> int | None:
        """Most tokens, with prompts, in all optimizer steps; None where their number is unknown."""
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


@dataclass(frozen=True, slots=True)
class BatchPlans:
    """The arithmetic of every stage that trains; None for a stage that is off."""

    sft: BatchPlan | None
    preference: BatchPlan | None
    reward_model: BatchPlan | None
    rl: BatchPlan | None

    @property
    def fullest(self) -> BatchPlan:
        """The stage whose full micro-batch holds the most tokens."""
        batches = (self.sft, self.preference, self.reward_model, self.rl)
        known = [batch for batch in batches if batch is not None]
        return max(known, key=lambda batch: batch.micro_batch_tokens)


def all_batches(
    recipe: Recipe,
    demonstrations: int | None,
    preferences: int | None = None,
    pairs: int | None = None,
) -> BatchPlans:
    """Return the arithmetic of the recipe's stages. ``pairs``: rows of the file that the stage
    preference reads. Raises ``UserError`` as they do."""
    return BatchPlans(
        sft_batch(recipe, demonstrations),
        preference_batch(recipe, pairs),
        reward_model_batch(recipe, preferences),
        rl_batch(recipe) if recipe.rl.enabled else None,
    )


def rl_batch(recipe: Recipe) -> BatchPlan:
    """Return the arithmetic of RL iterations. Raises ``UserError`` as ``_batch`` does."""
    rollout, update = recipe.rl.rollout, recipe.rl.update
    sequences = rollout.prompts * rollout.samples
    return _batch(
        recipe,
        "data.max_prompt_tokens + rl.rollout.max_new_tokens",
        longest=recipe.longest_sequence(rollout.max_new_tokens),
        rounds=recipe.rl.iterations,
        passes=update.epochs,
        sequences_per_round=sequences,
        sequences_per_step=sequences // update.mini_batches,
    )


def sft_batch(recipe: Recipe, demonstrations: int | None) -> BatchPlan | None:
    """Return the arithmetic of SFT epochs, or None when SFT is off.

    Raises ``UserError`` as ``_batch`` does, and where the demonstrations fill no batch.
    """
    sft = recipe.sft
    if not sft.enabled:
        return None
    if demonstrations is not None and demonstrations < sft.batch_size:
        raise UserError(
            f"sft.batch_size = {sft.batch_size} exceeds the {demonstrations} training"
            " demonstrations that data.sources give; lower it, add demonstrations or set"
            " sft.enabled to false"
        )
    return _batch(
        recipe,
        "sft.max_tokens",
        longest=sft.max_tokens,
        rounds=sft.epochs,
        sequences_per_round=demonstrations,
        sequences_per_step=sft.batch_size,
        max_steps=sft.max_steps,
    )


def preference_batch(recipe: Recipe, rows: int | None = None) -> BatchPlan | None:
    """Return the arithmetic of the epochs of DPO, every prompt with the most responses it may
    have, or of KTO; None without the stage. ``rows``: of the file, None = unknown.

    Raises ``UserError`` as ``reward_model_batch`` does.
    """
    section = recipe.preference
    if section is None:
        return None
    units, responses = _ranked_prompts(section.data, rows)
    together = responses if section.algorithm == "dpo" else 1
    units = None if units is None else units * responses // together
    return _ranked_batch(
        recipe,
        "preference",
        section.batch_size,
        units=units,
        responses=together,
        longest=section.max_tokens,
        epochs=section.epochs,
        max_steps=section.max_steps,
    )


def reward_model_batch(recipe: Recipe, rows: int | None = None) -> BatchPlan | None:
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
    if isinstance(source, SampledPreferences):
        prompts, responses = source.prompts, source.max_responses
        longest = min(longest, recipe.data.max_prompt_tokens + source.max_new_tokens)
    else:
        prompts, responses = _ranked_prompts(source, rows)
    return _ranked_batch(
        recipe,
        "reward_model",
        section.batch_prompts,
        units=prompts,
        responses=responses,
        longest=longest,
        epochs=section.epochs,
    )


def _ranked_prompts(
    source: Gsm8kSolutions | FilePreferences, rows: int | None
) -> tuple[int | None, int]:
    """Return the training prompts of a file of ``rows``, None where that is not known, and the
    responses to each, of which a file may have more."""
    if isinstance(source, Gsm8kSolutions):
        questions = rows or min(GSM8K_ROWS["test"], source.limit or GSM8K_ROWS["test"])
        return int(questions * (1 - source.validation_fraction)), 4
    return None if rows is None else int(rows * (1 - source.validation_fraction)), 2


def _ranked_batch(
    recipe: Recipe,
    section: str,
    batch_size: int,
    *,
    units: int | None,
    responses: int,
    longest: int,
    epochs: int,
    max_steps: int | None = None,
) -> BatchPlan:
    """Return the arithmetic of ``epochs`` over ``units`` of so many ``responses`` each, which share
    a micro-batch."""
    if units is not None and units < batch_size:
        key, what = (
            ("batch_prompts", "prompts") if section == REWARD_MODEL else ("batch_size", "rows")
        )
        raise UserError(
            f"{section}.{key} = {batch_size} exceeds the {units} training {what} that its"
            " preferences give; lower it or take more preferences"
        )
    batch = _batch(
        recipe,
        f"{section}.max_tokens",
        longest=longest,
        rounds=epochs,
        sequences_per_round=None if units is None else units * responses,
        sequences_per_step=batch_size * responses,
        max_steps=max_steps,
    )
    if responses > batch.sequences_per_micro_batch:
        raise UserError(
            f"hardware.learner.micro_batch_tokens = {recipe.hardware.learner.micro_batch_tokens}"
            f" does not hold the {responses} responses of {longest} tokens that one prompt of"
            f" {section} may have; raise it to at least"
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
    sequences_per_step: int,
    passes: int = 1,
    max_steps: int | None = None,
) -> BatchPlan:
    """Cut rounds, of so many ``passes`` over their sequences, into steps, and a step into ranks and
    micro-batches.

    As ``models.packing.pack`` does: a row holds as many sequences as ``row_tokens`` allows (unset:
    one longest sequence, or a whole micro-batch under flash attention), a micro-batch as many rows
    as ``micro_batch_tokens`` allows. Raises ``UserError`` when one longest sequence fits neither.
    """
    hardware = recipe.hardware.learner
    budget = hardware.pass_tokens
    row_tokens = hardware.row_tokens or (
        budget if hardware.attention == "flash_attention_2" else longest
    )
    ranks = hardware.sequence_parallel
    shared = f" times sequence_parallel = {ranks}" * (ranks > 1)
    for name, limit, divisor in (
        (f"micro_batch_tokens = {hardware.micro_batch_tokens}{shared}", budget, ranks),
        (f"row_tokens = {row_tokens}", row_tokens, 1),
    ):
        if longest > limit:
            raise UserError(
                f"hardware.learner.{name} is below {length_path} = {longest}, the longest legal"
                f" sequence; raise it to at least {-(-longest // divisor)}"
            )
    if row_tokens > budget:
        raise UserError(
            f"hardware.learner.row_tokens = {row_tokens} exceeds micro_batch_tokens = {budget};"
            " lower it to that or raise micro_batch_tokens"
        )
    per_row = row_tokens // longest
    per_micro_batch = budget // (per_row * longest) * per_row
    per_rank = -(-sequences_per_step // hardware.data_parallel)
    steps, limits = None, [] if max_steps is None else [max_steps]
    if sequences_per_round is not None:
        steps = passes * -(-sequences_per_round // sequences_per_step)
        limits.append(rounds * steps)
    return BatchPlan(
        rounds=rounds,
        sequences_per_round=sequences_per_round,
        steps_per_round=steps,
        total_steps=min(limits, default=None),
        sequences_per_step=sequences_per_step,
        sequences_per_rank=per_rank,
        longest=longest,
        row_tokens=per_row * longest,
        sequences_per_micro_batch=per_micro_batch,
        micro_batches=-(-per_rank // per_micro_batch),
    )


def smaller_passes(recipe: Recipe) -> int | None:
    """Return half of ``recipe``'s ``micro_batch_tokens``, None where the longest sequence, a row,
    or the responses that are compared with each other do not fit into so few."""
    half = recipe.hardware.learner.micro_batch_tokens // 2
    try:
        all_batches(with_learner(recipe, micro_batch_tokens=half), None)
    except UserError:
        return None
    return half


def sampled_sequences(recipe: Recipe) -> int:
    """Return the sequences of one generation round: all samples of its prompts, and one greedy
    answer each where the estimator needs it."""
    rollout, filtered = recipe.rl.rollout, recipe.rl.algorithm.dynamic_sampling
    prompts = rollout.prompts * (1 if filtered is None else filtered.batch_factor)
    return prompts * (rollout.samples + (1 if rollout.greedy_baseline else 0))


def worker_counts(recipe: Recipe) -> dict[str, int]:
    """Return the ranks of each model, engines excluded, as ``workers`` starts them."""
    hardware = recipe.hardware.learner
    ranks = hardware.ranks
    functions, models = recipe.reward.functions, recipe.reward_models
    served = {f"{REWARD_MODEL}:{name}" for name, model in models.items() if model.url}
    counts = {
        "policy": ranks,
        "critic": ranks if recipe.rl.critic is not None else 0,
        "reference": hardware.reference_ranks if recipe.has_reference_worker else 0,
        "reward model": sum(is_model(f.name) and f.name not in served for f in functions),
    }
    return {role: count for role, count in counts.items() if count}


def evaluation_tokens(recipe: Recipe, data: DataSize) -> tuple[int, int]:
    """Return the most tokens that evaluation samples: (per checkpoint, completions of them)."""
    section = recipe.evaluate
    prompts = sum(min(n, section.max_prompts or n) for n in data.test or ())
    completions = prompts * (1 + (section.samples if section.samples > 1 else 0))
    return completions * recipe.max_turns * section.max_new_tokens, completions
