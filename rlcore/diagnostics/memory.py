"""What to say of memory that ran out: which keys of the recipe help in which stage."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlcore.cluster.types import ran_out
from schemas.errors import UserError
from schemas.recipe import Recipe

OUT_OF_MEMORY = "out_of_memory"
MESSAGE = "memory ran out"
_OTHERWISE = "use a smaller model or a machine with more memory"


@contextmanager
def explained(recipe: Callable[[], Recipe], stage: str) -> Iterator[None]:
    """Raise UserError, in one sentence with the remedy, where the body runs out of memory.

    Any other error passes. ``recipe`` is called then: the recipe that memory ran out with.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not ran_out(error):
            raise
        where = f"{MESSAGE} in {stage} ({OUT_OF_MEMORY})"
        raise UserError(f"{where}: {remedy(recipe(), stage)}") from error


def remedy(recipe: Recipe, stage: str) -> str:
    """Return what to change so that ``stage`` needs less memory; never what is set already."""
    harmless = _without_effect(recipe)
    rollout = recipe.hardware.rollout
    match stage:
        case "sft" | "preference" | "reward_model" if section := getattr(recipe, stage):
            last = f"{stage}.max_tokens (now {section.max_tokens})"
        case "rl":
            last = "rl.rollout.max_new_tokens or rl.rollout.samples"
        case "evaluate":
            harmless = [
                f"lower hardware.rollout.max_num_seqs (now {rollout.max_num_seqs})",
                f"lower hardware.rollout.kv_cache_gib (now {rollout.kv_cache_gib}; CPU only)",
            ]
            last = f"evaluate.max_new_tokens (now {recipe.evaluate.max_new_tokens})"
        case _:
            return _OTHERWISE
    if not harmless:
        return f"lower {last}, or {_OTHERWISE}"
    none_does = "it does not" if len(harmless) == 1 else "neither does"
    return f"{' or '.join(harmless)} ({none_does} change the result); else lower {last}"


def _without_effect(recipe: Recipe) -> list[str]:
    """Return the settings of the learner that save memory and change no result."""
    learner = recipe.hardware.learner
    longest = [
        recipe.longest_sequence(recipe.rl.rollout.max_new_tokens) if recipe.rl.enabled else 0,
        recipe.sft.max_tokens if recipe.sft.enabled else 0,
        0 if recipe.preference is None else recipe.preference.max_tokens,
        0 if recipe.reward_model is None else recipe.reward_model.max_tokens,
    ]
    ways = []
    least = -(-max(longest) // learner.sequence_parallel)
    if learner.micro_batch_tokens > least:
        ways.append(
            f"lower hardware.learner.micro_batch_tokens (now {learner.micro_batch_tokens}, at least"
            f" {least})"
        )
    if not learner.gradient_checkpointing:
        ways.append("set hardware.learner.gradient_checkpointing to true")
    return ways
