"""Recipe section ``rl.rollout``: what the engines sample in an iteration, and in which order."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from schemas.names import REWARD_MODEL
from schemas.sampling import NO_TOP_K, StopTexts, Temperature
from schemas.section import Section, rule, setting


class RolloutSection(Section):
    """What is sampled per iteration."""

    prompts: int = setting(64, "prompts per iteration", ge=1)
    samples: int = setting(8, "responses per prompt: the group size G", ge=1)
    temperature: Temperature = setting(1.0, "divides the logits, of sampler and learner alike")
    top_p: float = setting(1.0, "probability mass kept; 1 = all", gt=0, le=1)
    top_k: int = setting(NO_TOP_K, "likeliest tokens kept; -1 = all", ge=-1)
    max_new_tokens: int = setting(512, "tokens a response may have", ge=1)
    stop: StopTexts = setting(
        (),
        "texts that end an answer besides the model's stop tokens; the tokens up to the end of one"
        " are kept and trained; rewards read the answer without it, environments with it",
    )
    greedy_baseline: bool = setting(
        False, "also answer each prompt greedily, as the baseline of ReMax"
    )
    schedule: Literal["lockstep", "streaming"] = setting(
        "lockstep",
        "lockstep = each engine samples its share as one batch, turn by turn, and a"
        " rerun gives the same bits; streaming = engines take the next turn as they get free and no"
        " episode waits for another's tool, but which turns share a batch depends on time, so a"
        " rerun may differ in the last bits (docs/understand/engines.md). Validation and evaluation"
        " are always in lockstep",
    )

    max_staleness: int = setting(
        0,
        "updates that the policy which samples may be behind: 0 = sample, then learn;"
        " S = iterations are sampled while others train, each from the weights that were S updates"
        " older than those that it trains, whatever takes how long"
        " (docs/understand/staleness.md)",
        ge=0,
    )

    @rule
    def _samples_whole_distribution(self) -> Iterator[str]:
        if self.top_p < 1 or self.top_k > 0:
            yield (
                "top_p < 1 or top_k > 0 cuts the distribution the learner's log-probs assume;"
                f" set top_p to 1 and top_k to {NO_TOP_K}"
            )
        if self.top_k == 0:
            yield f"top_k = 0 would leave no token to sample; set top_k to {NO_TOP_K}, which is off"


def with_rollout_stop(recipe: Any) -> Any:
    """Return the values of a recipe with the texts of ``rl.rollout.stop`` in each section that asks
    the policy for answers and does not say what ends them."""
    stop = _at(recipe, "rl", "rollout").get("stop")
    if not stop:
        return recipe
    recipe = dict(recipe)
    if isinstance(evaluate := recipe.get("evaluate", {}), Mapping):
        recipe["evaluate"] = {"stop": stop, **evaluate}
    ranked = _at(recipe, REWARD_MODEL, "preferences")
    if isinstance(model := recipe.get(REWARD_MODEL), Mapping) and "kind" not in ranked:
        ranked = {"kind": "samples", **ranked}
    if isinstance(model, Mapping) and ranked["kind"] == "samples":
        recipe[REWARD_MODEL] = {**model, "preferences": {"stop": stop, **ranked}}
    return recipe


def _at(values: Any, *path: str) -> Mapping[str, Any]:
    """Return the section at ``path``; {} where there is none, or it is no mapping."""
    for name in path:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values if isinstance(values, Mapping) else {}
