"""Whether a recipe can go on from a checkpoint of another: the same models, and something to do."""

from typing import Any

from rlcore.results.differences import recipe_differences
from rlcore.rl.fork import beyond
from schemas.errors import UserError
from schemas.names import BASE_MODEL
from schemas.recipe import Recipe


def check_fits(before: Recipe, after: Recipe, name: str, number: int) -> None:
    """Raise UserError where ``after`` cannot go on from iteration ``number`` of a run of
    ``before``; ``name``: what the user calls it."""
    shapes = [_shape(recipe) for recipe in (before, after)]
    for changed in recipe_differences(shapes):
        old, new = changed.values
        raise UserError(
            f"{name} does not fit: {changed.name} {old} -> {new} makes another model than that of"
            " the checkpoint; leave it as it was, or start without a fork"
        )
    if after.rl.critic is not None and before.rl.critic is None:
        raise UserError(
            f"{name} does not fit: rl.critic is set and the checkpoint holds no critic; set"
            " rl.critic to null, or start without a fork"
        )
    if number >= after.rl.iterations:
        raise UserError(beyond(name, number, after))


def _shape(recipe: Recipe) -> dict[str, Any]:
    """Return what decides the tensors of the model and its tokenizer."""
    part = recipe.slice_for(BASE_MODEL)
    origin = recipe.model.model_dump(mode="json", include={"path", "revision", "dtype"})
    return {**part, "model": {**part["model"], **origin}}
