"""One PPO iteration on the answer ``#### 72``, token by token, against plain arithmetic."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcore.algorithms.advantages import AdvantageInput, estimate
from rlcore.algorithms.objective import PolicyObjective, ValueObjective
from rlcore.learner.spec import TokenScores
from rlcore.models.packing import Sequences
from rlcore.rewards.gsm8k import scorer
from rlcore.rewards.types import RewardRow
from rlcore.rl.scores import estimated_kl
from rlcore.rl.token_trace import token_terms, value_terms

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "walk.json").read_text())
GIVEN, EXPECTED = GOLDEN["given"], GOLDEN["expected"]
KL_COEF = 0.01
CLOSE: dict[str, Any] = {"rel": 1e-5, "abs": 1e-6}


def arrays(rows: list[list[float]]) -> list[np.ndarray]:
    """Return them behind a prompt of one token, on which nothing is scored."""
    return [np.array([0.0, *row]) for row in rows]


@pytest.fixture
def credited() -> AdvantageInput:
    """The two answers with the scores of the reward ``gsm8k`` and the KL to the reference."""
    masks = [np.array([False] + [True] * 5) for _ in GIVEN["texts"]]
    reward = scorer("strict")
    scores = [
        reward(RewardRow(str(i), "gsm8k", "".join(texts[:-1]), "72", {}, "stop", 5))
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


def mini_batch(credited: AdvantageInput) -> Sequences:
    """Return both answers with their advantages, as an update trains on them."""
    result = estimate("gae", credited, gamma=1.0, lam=0.95)
    assert result.returns is not None
    named = {
        "advantages": result.advantages,
        "returns": result.returns,
        "old_values": arrays(GIVEN["values"]),
        "old_logprobs": arrays(GIVEN["old"]),
        "rollout_logprobs": arrays(GIVEN["old"]),
    }
    return Sequences(
        token_ids=[np.arange(6, dtype=np.int32) for _ in credited.masks],
        loss_mask=list(credited.masks),
        per_token={n: [a.astype(np.float32) for a in rows] for n, rows in named.items()},
    )


@pytest.mark.parametrize("row", [0, 1])
def test_the_answer_is_walked_from_its_reward_to_its_losses(
    row: int, credited: AdvantageInput
) -> None:
    """A reader learns PPO from this table: every column must be what training computes."""
    wanted: dict[str, Any] = EXPECTED[row]
    sequences = mini_batch(credited)
    for name, found in (
        ("reward", credited.rewards()),
        ("advantage", sequences.per_token["advantages"]),
        ("returns", sequences.per_token["returns"]),
    ):
        assert found[row][1:] == pytest.approx(wanted[name], **CLOSE), name
    scored = TokenScores([arrays(GIVEN["new"])[row]], [], [])
    objective = PolicyObjective(clip_dual=3.0, entropy_coef=None)
    terms = token_terms(objective, sequences, row, scored)
    assert terms.old == pytest.approx(GIVEN["old"][row])
    assert terms.ratio == pytest.approx(wanted["ratio"], **CLOSE)
    assert terms.clip == wanted["clip"]
    assert terms.loss == pytest.approx(wanted["loss"], **CLOSE)
    assert terms.loss.sum() == pytest.approx(terms.total, **CLOSE)
    assert value_terms(ValueObjective(), sequences, row) == pytest.approx(
        wanted["value_loss"], **CLOSE
    )


def test_every_kind_of_clip_is_among_the_expected() -> None:
    assert {clip for row in EXPECTED for clip in row["clip"]} >= {"", "low", "high"}


def test_terms_with_kl_and_entropy_in_the_loss_add_up(credited: AdvantageInput) -> None:
    sequences = mini_batch(credited)
    sequences.per_token["ref_logprobs"] = [a.astype(np.float32) for a in arrays(GIVEN["ref"])]
    entropy = np.array([0.0, 0.5, 0.4, 0.3, 0.2, 0.1])
    scored = TokenScores([arrays(GIVEN["new"])[0]], [entropy], [])
    objective = PolicyObjective(
        kl_coef=0.1, entropy_coef=0.01, aggregation="seq-mean-token-mean", horizon=5
    )
    terms = token_terms(objective, sequences, 0, scored)
    assert (terms.kl > 0).any()
    assert terms.weight == pytest.approx([1 / (2 * 5)] * 5)
    assert terms.loss.sum() == pytest.approx(terms.total, **CLOSE)
    without = token_terms(PolicyObjective(entropy_coef=None), sequences, 0, scored)
    assert terms.total != pytest.approx(without.total)


def test_with_the_sampler_as_old_the_walk_measures_against_it(credited: AdvantageInput) -> None:
    """The ratio shown must be the one that the loss clips."""
    sequences = mini_batch(credited)
    sequences.per_token["rollout_logprobs"] = [a.astype(np.float32) for a in arrays(GIVEN["ref"])]
    scored = TokenScores([arrays(GIVEN["new"])[0]], [], [])
    terms = token_terms(PolicyObjective(bypass=True, entropy_coef=None), sequences, 0, scored)
    assert terms.old == pytest.approx(GIVEN["ref"][0])
    ratio = np.exp(np.subtract(GIVEN["new"][0], GIVEN["ref"][0]))
    assert terms.ratio == pytest.approx(ratio, **CLOSE)
    assert terms.loss.sum() == pytest.approx(terms.total, **CLOSE)
