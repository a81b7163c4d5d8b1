"""One PPO iteration on the answer ``#### 72``, token by token, against plain arithmetic."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms.advantages import AdvantageInput, AdvantageResult, estimate
from rlcore.algorithms.losses import RATIOS
from rlcore.algorithms.objective import PolicyObjective, ValueObjective
from rlcore.algorithms.objective_types import TokenBatch, TokenOutputs
from rlcore.rewards.gsm8k import scorer
from rlcore.rewards.types import RewardRow
from rlcore.rl.scores import estimated_kl

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "walk.json").read_text())
GIVEN, EXPECTED = GOLDEN["given"], GOLDEN["expected"]
KL_COEF = 0.01
TOKENS = 5  # of each of the two answers
CLOSE: dict[str, Any] = {"rel": 1e-5, "abs": 1e-6}


def arrays(rows: list[list[float]]) -> list[np.ndarray]:
    """Return them behind a prompt of one token, on which nothing is scored."""
    return [np.array([0.0, *row]) for row in rows]


@pytest.fixture
def credited() -> AdvantageInput:
    """The two answers with the scores of the reward ``gsm8k`` and the KL to the reference."""
    masks = [np.array([False] + [True] * TOKENS) for _ in GIVEN["texts"]]
    reward = scorer("strict")
    scores = [
        reward(RewardRow(str(i), "gsm8k", "".join(texts[:-1]), "72", {}, "stop", TOKENS))
        for i, texts in enumerate(GIVEN["texts"])
    ]
    assert [one.score for one in scores] == GIVEN["scores"]
    kl = estimated_kl(arrays(GIVEN["old"]), arrays(GIVEN["ref"]), masks, "k1")
    return AdvantageInput(
        scores=np.array(GIVEN["scores"]),
        group_ids=np.array(["a", "b"]),
        masks=masks,
        token_kl=[KL_COEF * row for row in kl],
        values=arrays(GIVEN["values"]),
    )


def losses(
    objective: PolicyObjective | ValueObjective, row: int, result: AdvantageResult
) -> list[float]:
    """Return the term of each token of an answer in the loss of the mini-batch of both."""
    assert result.returns is not None
    named = {
        "advantages": result.advantages[row][1:],
        "returns": result.returns[row][1:],
        "old_values": GIVEN["values"][row],
        "old_logprobs": GIVEN["old"][row],
        "rollout_logprobs": GIVEN["old"][row],
    }
    fields = {name: torch.tensor(values, dtype=torch.float32) for name, values in named.items()}
    outputs = TokenOutputs(logprobs=torch.tensor(GIVEN["new"][row]), values=fields["old_values"])
    rows, share = torch.zeros(TOKENS, dtype=torch.int64), 1 / (2 * TOKENS)
    return [
        float(objective(outputs, TokenBatch(share * alone, share, rows, fields))[0])
        for alone in torch.eye(TOKENS)
    ]


@pytest.mark.parametrize("row", [0, 1])
def test_the_answer_is_walked_from_its_reward_to_its_losses(
    row: int, credited: AdvantageInput
) -> None:
    wanted: dict[str, Any] = EXPECTED[row]
    result = estimate("gae", credited, gamma=1.0, lam=0.95)
    assert result.returns is not None
    for name, found in (
        ("reward", credited.rewards()),
        ("advantage", result.advantages),
        ("returns", result.returns),
    ):
        assert found[row][1:] == pytest.approx(wanted[name], **CLOSE), name
    new, old = (torch.tensor(GIVEN[name][row]) for name in ("new", "old"))
    ratio = RATIOS["token"](new, old, torch.zeros(TOKENS, dtype=torch.int64))
    assert ratio.tolist() == pytest.approx(wanted["ratio"], **CLOSE)
    policy = PolicyObjective(clip_dual=3.0, entropy_coef=None)
    assert losses(policy, row, result) == pytest.approx(wanted["loss"], **CLOSE)
    assert losses(ValueObjective(), row, result) == pytest.approx(wanted["value_loss"], **CLOSE)


def test_every_kind_of_clip_is_among_the_expected() -> None:
    assert {clip for row in EXPECTED for clip in row["clip"]} >= {"", "low", "high"}
