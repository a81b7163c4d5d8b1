"""What must hold before an evolving starts."""

from rlcore.evolve.prompts import check_templates
from rlcore.preflight.start import check_evaluation
from schemas.environment import GAMES
from schemas.errors import UserError
from schemas.judges import may_verify
from schemas.names import by_workers
from schemas.recipe import Recipe


def check_evolve(recipe: Recipe) -> None:
    """Raise UserError, as ``check_evaluation``, where nothing can be evolved on ``recipe``: also
    for a template that cannot be rendered, a game, and rewards that check no answer."""
    check_templates(recipe.evolve)
    environment = recipe.environment
    if environment is not None and environment.name in GAMES:
        raise UserError(
            f"environment.name = {environment.name!r} is a game, which has no answer to verify;"
            " evolve a recipe of problems with answers"
        )
    functions = [f for f in recipe.reward.functions if by_workers(f.name)]
    if not any(may_verify(function, recipe.judges) for function in functions):
        raise UserError(
            "reward.functions holds no function that checks correctness, so no accuracy could be"
            " told; add one, of weight 0 if it is for that alone"
        )
    check_evaluation(recipe)
