"""How often a run asks its judges, against what its recipe lets them cost."""

from collections.abc import Iterator

from rlcore.preflight.batches import evaluation_tokens, sampled_sequences
from rlcore.preflight.data_size import DataSize
from schemas.judges import judges_used
from schemas.recipe import Recipe
from schemas.reward_model import SampledPreferences


def judge_calls(recipe: Recipe, data: DataSize) -> dict[str, int | None]:
    """Return by stage the responses that each judge of the reward is asked about, one call each;
    None where that is not known before the run.

    Equal responses to a prompt are asked about once, answers in the cache are not paid for again,
    and a run may end early, so these are upper bounds. Dynamic sampling counts all rounds that it
    may take; a request that fails and may have been charged for is in none of them.
    """
    rl, filtered = recipe.rl, recipe.rl.algorithm.dynamic_sampling
    rounds = 1 if filtered is None else filtered.max_rounds
    section = recipe.reward_model
    ranked = section.preferences if section is not None else None
    calls: dict[str, int | None] = {}
    if isinstance(ranked, SampledPreferences):
        prompts = ranked.prompts + ranked.validation_prompts
        calls["reward_model"] = prompts * ranked.max_responses
    calls["rl"] = rl.iterations * sampled_sequences(recipe) * rounds if rounds > 0 else None
    validated = min(rl.validation.prompts, data.validation or rl.validation.prompts)
    calls["validation"] = (rl.iterations // rl.validation.every + 1) * validated
    calls["evaluate"] = None
    if data.test is not None:
        _, completions = evaluation_tokens(recipe, data)
        calls["evaluate"] = len(recipe.evaluate.checkpoints) * completions
    return {stage: count for stage, count in calls.items() if count != 0}


def judge_lines(recipe: Recipe, data: DataSize) -> Iterator[str]:
    """Yield a line per judge: calls by stage and in all against the ceiling, and a warning where it
    may be reached."""
    calls = judge_calls(recipe, data)
    known = sum(count for count in calls.values() if count is not None)
    open_ends = [stage for stage, count in calls.items() if count is None]
    parts = ", ".join(
        f"{stage} {'unknown' if count is None else f'{count:,}'}" for stage, count in calls.items()
    )
    most = " and those of ".join([f"{known:,} calls", *open_ends])
    for name, judge in judges_used(recipe.judges, recipe.reward.functions).items():
        yield f"judge {name}: at most {most} ({parts}); max_calls = {judge.max_calls:,}"
        if known > judge.max_calls:
            yield (
                f"WARNING: judges.{name}.max_calls = {judge.max_calls:,} is less than that; a run"
                " that reaches it stops, and continues when it is raised"
            )
