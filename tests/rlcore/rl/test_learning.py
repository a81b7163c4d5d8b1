"""Every algorithm learns a verifiable task from chance."""

from collections.abc import Callable
from typing import Any

import pytest

from rlcore.rewards.types import RewardRow
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import Phases

SMALL_TASK: dict[str, Any] = {
    "reward.offset": 0.0,
    "rl.iterations": 40,
    "rl.rollout.prompts": 16,
    "rl.rollout.samples": 8,
    "rl.rollout.max_new_tokens": 2,
    "rl.update.mini_batches": 2,
    "rl.update.optimizer.lr": 1e-2,
    "rl.update.optimizer.schedule.min_lr_ratio": 0.1,
    "rl.validation.every": 40,
    "rl.checkpoint.every": 40,
}
GROUPS = {"rl.rollout.prompts": 16, "rl.rollout.samples": 8}
SINGLES = {"rl.rollout.prompts": 64, "rl.rollout.samples": 1}
CASES: dict[str, dict[str, Any]] = {
    "quickstart": GROUPS,
    "quickstart-ppo": SINGLES,
    "quickstart-dapo": {
        **GROUPS,
        "rl.algorithm.overlong": None,
        "rl.algorithm.dynamic_sampling.max_rounds": 3,
        "rl.algorithm.dynamic_sampling.on_exhausted": "pad_unfiltered",
    },
    "quickstart-rloo": GROUPS,
    "quickstart-gspo": GROUPS,
    "quickstart-gepo": GROUPS,
    "quickstart-vapo": {
        **GROUPS,
        "rl.critic.warmup_iterations": 4,
        "rl.critic.optimizer.lr": 1e-2,
    },
    "quickstart-remax": SINGLES,
}


def third(row: RewardRow) -> float:
    """1 when the first token's id is a multiple of three: chance is one in three."""
    return float((row.token_ids or [1])[-row.num_tokens] % 3 == 0)


FAST = ("quickstart",)


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in CASES],
)
def test_from_chance_to_nine_in_ten(make_phases: Callable[..., Phases], recipe: str) -> None:
    """A wrong sign, mask or scale anywhere in the chain leaves the policy at chance."""
    phases = make_phases(recipe, third, {**SMALL_TASK, **CASES[recipe]})
    accuracies: list[float] = []
    iterate(phases, Steps(), lambda state, metrics: accuracies.append(metrics["critic/accuracy"]))
    assert 0.15 < accuracies[0] < 0.55, "sampling starts at chance"
    assert sum(accuracies[-3:]) / 3 > 0.9, accuracies
