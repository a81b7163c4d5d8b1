"""Which algorithm needs what, and which one to choose, derived from the presets."""

from dataclasses import dataclass

from schemas.errors import UserError, did_you_mean
from schemas.presets import PRESETS
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


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one preset does along the axes of ``schemas.algorithm``.

    ``kl``: "none", "loss" or "reward". ``gamma``: whether the estimator reads a discount.
    ``clip``: lower bound, upper bound and dual clip of the importance ratio (None: off).
    """

    name: str
    advantage: str
    critic: bool
    group: bool
    greedy: bool
    samples: int
    kl: str
    filtering: bool
    gamma: bool
    ratio: str
    clip: tuple[float, float, float | None]
    aggregation: str
    source: str


def capabilities(name: str) -> Capabilities:
    """Return what the preset ``name`` does. Raises UserError with the nearest name."""
    if name not in PRESETS:
        raise UserError(
            f"algorithm '{name}' is not one of {', '.join(PRESETS)}{did_you_mean(name, PRESETS)}"
        )
    # more iterations than any preset's critic warm-up takes
    section = RLSection.model_validate({"preset": name, "iterations": 1000})
    algorithm, traits = section.algorithm, section.algorithm.traits
    return Capabilities(
        name=name,
        advantage=algorithm.advantage,
        critic=section.critic is not None,
        group=traits.group or algorithm.ratio_level == "group",
        greedy=traits.greedy,
        samples=section.rollout.samples,
        kl=algorithm.kl.where,
        filtering=algorithm.dynamic_sampling is not None,
        gamma=traits.gamma,
        ratio=algorithm.ratio_level,
        clip=(1 - algorithm.clip_low, 1 + algorithm.clip_high, algorithm.clip_dual),
        aggregation=algorithm.aggregation,
        source=SOURCES[name],
    )


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Presets in the order of preference, and why."""

    scenario: str
    presets: tuple[str, ...]
    why: str


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
)
TREE = {
    ("dialogue", False): Recommendation("dialogue", ("grpo", "gspo"), "stable, well-tested"),
    ("reasoning", False): Recommendation("reasoning", ("dapo",), "50 on AIME 2024, no critic"),
    ("reasoning", True): Recommendation("reasoning, sota", ("vapo",), "60.4 on AIME 2024"),
    ("distributed", False): Recommendation("distributed", ("gepo",), "handles latency"),
}
# Other words for a scenario; a word of its name finds it as well.
_MEANT = {
    "programming": "code generation",
    "coding": "code generation",
    "software": "code generation",
    "mathematics": "math problem solving",
    "maths": "math problem solving",
    "chat": "customer service chatbot",
    "agent": "agentic tasks",
    "agents": "agentic tasks",
    "tools": "agentic tasks",
    "environment": "agentic tasks",
    "no critic": "without a critic",
}


def recommend(scenario: str, *, sota: bool = False) -> Recommendation:
    """Return what StateSet's guide recommends for a scenario, or its tree for a use case.

    Words that only one scenario has, such as "code", name it.

    Use cases are dialogue, reasoning and distributed; ``sota`` selects the best known algorithm for
    reasoning and changes nothing for the others. Raises UserError with the nearest name.

    >>> recommend("math problem solving").presets
    ('vapo',)
    """
    known = {row.scenario: row for row in RECOMMENDATIONS}
    known |= {use: row for (use, best), row in TREE.items() if not best}
    wanted = " ".join(scenario.lower().replace("-", " ").replace("_", " ").split())
    wanted = _MEANT.get(wanted, wanted)
    holding = [name for name in known if wanted and set(wanted.split()) <= set(name.split())]
    if wanted not in known and len(holding) == 1:
        (wanted,) = holding
    if wanted not in known:
        raise UserError(
            f"scenario '{scenario}' is not one of {', '.join(known)}{did_you_mean(wanted, known)}"
        )
    return TREE.get((wanted, sota), known[wanted])


def capability_table() -> list[str]:
    """Return the table of all presets as lines of text."""
    head = (
        *("preset", "advantage", "critic", "group", "samples", "KL", "filter", "gamma", "ratio"),
        *("clip", "loss"),
    )
    rows = [head, *(_row(capabilities(name)) for name in PRESETS)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    sources = ["source", *(SOURCES[name] for name in PRESETS)]
    return [f"{line}  {source}" for line, source in zip(lines, sources, strict=True)]


def _row(row: Capabilities) -> tuple[str, ...]:
    low, high, dual = row.clip
    samples = f"{row.samples} + greedy" if row.greedy else str(row.samples)
    clip = f"{low:g}..{high:g}" + ("" if dual is None else f", c {dual:g}")
    critic, group, filtering, gamma = (
        "yes" if has else "no" for has in (row.critic, row.group, row.filtering, row.gamma)
    )
    return (
        *(row.name, row.advantage, critic, group, samples, row.kl, filtering, gamma, row.ratio),
        *(clip, row.aggregation),
    )


def recommendation_lines(scenario: str | None = None) -> list[str]:
    """Return one line per scenario, or the lines that answer one scenario, with its row each."""
    if scenario is None:
        return [_sentence(row) for row in RECOMMENDATIONS]
    answers = [recommend(scenario)]
    best = recommend(scenario, sota=True)
    answers += [best] if best != answers[0] else []
    table = capability_table()
    names = [name for answer in answers for name in answer.presets]
    rows = [line for line in table[1:] if line.split()[0] in names]
    return [*(_sentence(answer) for answer in answers), "", table[0], *rows]


def tree_lines() -> list[str]:
    """Return the decision tree as lines of text."""
    return ["what is it for?", *(f"  {_sentence(row)}" for row in TREE.values())]


def _sentence(row: Recommendation) -> str:
    return f"{row.scenario}: {' or '.join(row.presets)} ({row.why})"
