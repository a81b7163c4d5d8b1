"""How much smaller the passes of a recipe's learners can be."""

from rlcore.dry_run.batches import all_batches
from rlcore.recipes import with_micro_batch_tokens
from schemas.errors import UserError
from schemas.recipe import Recipe


def smaller_passes(recipe: Recipe) -> int | None:
    """Return half of ``recipe``'s ``micro_batch_tokens``, None where the longest sequence, a row,
    or the responses that are compared with each other do not fit into so few."""
    half = recipe.hardware.learner.micro_batch_tokens // 2
    try:
        all_batches(with_micro_batch_tokens(recipe, half), None)
    except UserError:
        return None
    return half
