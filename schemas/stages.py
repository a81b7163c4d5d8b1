"""The stages of the pipeline, and what each one reads of those before it."""

from collections.abc import Iterable
from enum import StrEnum

from schemas.errors import UserError, did_you_mean
from schemas.recipe import Recipe


class Stage(StrEnum):
    """A cached step of the pipeline, in the order in which they run."""

    BASE_MODEL = "base_model"
    PREPARE_DATA = "prepare_data"
    SFT = "sft"
    PREFERENCE = "preference"
    REWARD_MODEL = "reward_model"
    RL = "rl"
    EVALUATE = "evaluate"
    EXPORT = "export"


Parents = dict[str, Stage]


def stage_parents(recipe: Recipe) -> dict[Stage, Parents]:
    """Return the stages of ``recipe`` in order, each with the stages it reads, by role."""
    dataset = Stage.PREPARE_DATA
    plan: dict[Stage, Parents] = {
        Stage.BASE_MODEL: {},
        dataset: {"base_model": Stage.BASE_MODEL},
    }
    warm, trained, scorer = Stage.BASE_MODEL, Parents(), Parents()
    if recipe.sft.enabled:
        plan[Stage.SFT] = {"base_model": Stage.BASE_MODEL, "dataset": dataset}
        warm, trained = Stage.SFT, {"sft": Stage.SFT}
    if recipe.preference is not None:
        plan[Stage.PREFERENCE] = {"dataset": dataset, "policy": warm}
        warm, trained = Stage.PREFERENCE, {**trained, "preference": Stage.PREFERENCE}
    if recipe.reward_model is not None:
        plan[Stage.REWARD_MODEL] = {"dataset": dataset, "policy": warm}
        scorer = {"reward_model": Stage.REWARD_MODEL}
    read = {"dataset": dataset, "base_model": Stage.BASE_MODEL}
    if recipe.rl.enabled:
        plan[Stage.RL] = {"dataset": dataset, "policy": warm, **scorer}
        warm, trained = Stage.RL, {**trained, "rl": Stage.RL}
    plan[Stage.EVALUATE] = {**read, **trained, **scorer}
    plan[Stage.EXPORT] = {"dataset": dataset, "policy": warm, "evaluation": Stage.EVALUATE}
    return plan


OFF = {
    Stage.SFT: "sft.enabled = false",
    Stage.PREFERENCE: "preference = null",
    Stage.REWARD_MODEL: "reward_model = null",
    Stage.RL: "rl.enabled = false",
}


def check_stages(
    recipe: Recipe,
    refresh: Iterable[str] = (),
    until: str | None = None,
    *,
    refresh_name: str = "refresh",
) -> None:
    """Raise UserError where a run of ``recipe`` would not come to a stage of ``refresh``, or has no
    stage ``until``. ``refresh_name``: what the user calls the former."""
    there = [stage.value for stage in stage_parents(recipe)]
    given = [(refresh_name, name) for name in refresh] + ([("until", until)] if until else [])
    for key, name in given:
        if name not in there:
            off = f", as {OFF[Stage(name)]}" if name in OFF else ""
            near = "" if off else did_you_mean(name, there)
            raise UserError(
                f"{key} = '{name}' is no stage of recipe '{recipe.name}'{off}; it has"
                f" {', '.join(there)}{near or '; name one of these'}"
            )
    for name in refresh:
        if until and there.index(name) > there.index(until):
            raise UserError(
                f"{refresh_name} = '{name}' comes after until = '{until}', where the run ends;"
                " leave one of the two out"
            )
