"""Which algorithm needs what, derived from the presets, and which one to choose."""

from typing import Any, NamedTuple

from schemas.errors import UserError, did_you_mean
from schemas.rl import RLSection

SOURCES = {
    "ppo": "arXiv 1707.06347, 1506.02438",
    "ppo-instructgpt": "arXiv 2203.02155",
    "grpo": "arXiv 2402.03300",
    "rloo": "arXiv 2402.14740",
    "remax": "arXiv 2310.10505",
    "dapo": "arXiv 2503.14476",
    "gspo": "arXiv 2507.18071",
    "gepo": "arXiv 2508.17850",
    "vapo": "arXiv 2504.05118",
}


def capabilities(name: str) -> dict[str, Any]:
    """Return what the preset ``name`` does along the axes of ``schemas.algorithm``.

    ``kl``: "none", "loss" or "reward". ``gamma``: whether the estimator reads a discount.
    ``clip``: lower bound, upper bound and dual clip of the importance ratio (None: off).
    """
    # more iterations than any preset's critic warm-up takes
    section = RLSection.model_validate({"preset": name, "iterations": 1000})
    algorithm, traits = section.algorithm, section.algorithm.traits
    return {
        "name": name,
        "advantage": algorithm.advantage,
        "critic": section.critic is not None,
        "group": traits.group or algorithm.ratio_level == "group",
        "greedy": traits.greedy,
        "samples": section.rollout.samples,
        "kl": algorithm.kl.where,
        "filtering": algorithm.dynamic_sampling is not None,
        "gamma": traits.gamma,
        "ratio": algorithm.ratio_level,
        "clip": (1 - algorithm.clip_low, 1 + algorithm.clip_high, algorithm.clip_dual),
        "aggregation": algorithm.aggregation,
        "source": SOURCES[name],
    }


class Recommendation(NamedTuple):
    """Presets in the order of preference, and why."""

    scenario: str
    presets: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"{self.scenario}: {' or '.join(self.presets)} ({self.why})"


SOTA = ", sota"  # ends a scenario's second answer: the best known, at any cost
# StateSet's guide, "Summary Recommendations" and the tree of "Choosing the Right Algorithm"; then
# the lists of AlphaApollo's page "RL Training" on when to use PPO and GRPO.
RECOMMENDATIONS = (
    Recommendation("customer service chatbot", ("grpo", "gspo"), "stable, well-tested"),
    Recommendation("math problem solving", ("vapo",), "SOTA performance (60.4 on AIME 2024)"),
    Recommendation("code generation", ("dapo",), "good for long outputs"),
    Recommendation("distributed training", ("gepo",), "handles latency"),
    Recommendation("quick prototyping", ("grpo",), "simplest"),
    Recommendation("production reasoning", ("vapo",), "most reliable"),
    Recommendation("trained reward model", ("ppo",), "its scores are learnt from as they are"),
    Recommendation("sample efficiency", ("ppo",), "can learn from fewer samples"),
    Recommendation("value of each token", ("ppo",), "the critic estimates it"),
    Recommendation("without a critic", ("grpo",), "simpler training"),
    Recommendation("little gpu memory", ("grpo",), "no critic is held"),
    Recommendation("agentic tasks", ("grpo",), "samples of one task are compared as a group"),
    Recommendation("dialogue", ("grpo", "gspo"), "stable, well-tested"),
    Recommendation("reasoning", ("dapo",), "50 on AIME 2024, no critic"),
    Recommendation("reasoning" + SOTA, ("vapo",), "60.4 on AIME 2024"),
    Recommendation("distributed", ("gepo",), "handles latency"),
)


def recommend(scenario: str) -> list[Recommendation]:
    """Return what is recommended for a scenario; for reasoning the state of the art, too. Raises
    UserError with the nearest name.

    >>> [row.presets for row in recommend("math problem solving")]
    [('vapo',)]
    """
    wanted = " ".join(scenario.lower().replace("-", " ").replace("_", " ").split())
    found = [row for row in RECOMMENDATIONS if row.scenario.removesuffix(SOTA) == wanted]
    if not found:
        known = list(dict.fromkeys(row.scenario.removesuffix(SOTA) for row in RECOMMENDATIONS))
        raise UserError(
            f"scenario '{scenario}' is not one of {', '.join(known)}{did_you_mean(wanted, known)}"
        )
    return found
