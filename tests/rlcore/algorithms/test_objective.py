"""The composed objectives, on a two-layer language model in float64."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms.aggregation import token_weights
from rlcore.algorithms.kl import categorical_entropy, full_kl
from rlcore.algorithms.losses import pair_weights
from rlcore.algorithms.objective import (
    PolicyObjective,
    PreferenceObjective,
    SftObjective,
    ValueObjective,
)
from rlcore.algorithms.objective_types import Objective, TokenBatch, TokenOutputs
from schemas.algorithm import Rejection

TOKENS, VOCABULARY = 9, 5
ROWS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
GROUPS = (ROWS > 0).long()


def toy_batch(aggregation: str = "token-mean") -> TokenBatch:
    generator = torch.Generator().manual_seed(1)
    weights = token_weights(
        aggregation, np.bincount(ROWS.numpy()), horizon=4, groups=np.array([0, 1, 1])
    )
    # Far enough apart that both clips, the dual clip and the value clip are active somewhere.
    centres = {
        "old_logprobs": (-1.6, 1.0),
        "rollout_logprobs": (-1.6, 0.1),
        "ref_logprobs": (-1.6, 0.5),
        "advantages": (0.0, 1.0),
        "returns": (0.0, 1.0),
        "old_values": (0.0, 0.1),
    }
    fields = {
        name: centre + scale * torch.randn(TOKENS, generator=generator, dtype=torch.float64)
        for name, (centre, scale) in centres.items()
    }
    ranks = torch.randint(0, 3, (TOKENS,), generator=generator)
    fields |= {
        "group_log_expectation": torch.tensor([-1.5, -1.7])[GROUPS].double(),
        "nll_weights": (ROWS == 1) / 2.0,
        "ranks": ranks.double(),
        "pair_weights": torch.tensor(pair_weights(ranks.numpy(), GROUPS.numpy())),
    }
    return TokenBatch(torch.tensor(weights)[ROWS], 1 / TOKENS, ROWS, fields, GROUPS)


def cut(whole: TokenOutputs | TokenBatch, part: torch.Tensor) -> Any:
    """The targets where ``part`` is True."""
    if isinstance(whole, TokenOutputs):
        return TokenOutputs(
            whole.logprobs[part], whole.entropy[part], whole.kl[part], whole.values[part]
        )
    return replace(
        whole,
        weights=whole.weights[part],
        rows=whole.rows[part],
        fields={name: values[part] for name, values in whole.fields.items()},
        groups=whole.groups[part],
    )


class ToyLM(torch.nn.Module):
    """Embedding, two tanh layers, head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Embedding(VOCABULARY, 6),
            torch.nn.Linear(6, 6),
            torch.nn.Tanh(),
            torch.nn.Linear(6, 6),
            torch.nn.Tanh(),
            torch.nn.Linear(6, VOCABULARY + 1),
        ).double()
        reference = torch.randn(TOKENS, VOCABULARY).double()
        self.reference = torch.log_softmax(reference, -1)

    def forward(self) -> TokenOutputs:
        ids = torch.arange(TOKENS) % VOCABULARY
        logits, values = self.layers(ids).split([VOCABULARY, 1], -1)
        log_softmax = torch.log_softmax(logits, -1)
        logprobs = log_softmax.gather(-1, (ids[:, None] * 3 + 1) % VOCABULARY).squeeze(-1)
        return TokenOutputs(
            logprobs,
            categorical_entropy(log_softmax),
            full_kl(log_softmax, self.reference),
            values[:, 0],
        )


SEQUENCE = "seq-mean-token-mean"
OBJECTIVES: dict[str, Objective] = {
    "sft": SftObjective(),
    "grpo": PolicyObjective(aggregation="seq-mean-token-mean", kl_coef=0.1, kl_estimator="k3"),
    "dapo": PolicyObjective(clip_high=0.28, clip_dual=10.0),
    "no dual, k1": PolicyObjective(clip_dual=None, kl_coef=0.2, kl_estimator="k1"),
    "abs, entropy": PolicyObjective(kl_coef=0.2, kl_estimator="abs", entropy_coef=0.05),
    "k2, corrected": PolicyObjective(
        aggregation="seq-mean-token-sum-norm",
        horizon=4,
        kl_coef=0.2,
        kl_estimator="k2",
        importance_level="sequence",
    ),
    "icepop": PolicyObjective(
        importance_level="token", importance_mode="mask", importance_low=0.5, importance_cap=5.0
    ),
    "rejected": PolicyObjective(
        importance_level="token",
        reject=(Rejection(statistic="geometric", low=0.5, high=1.5),),
        aggregation=SEQUENCE,
    ),
    "bypass": PolicyObjective(bypass=True, clip_high=0.28),
    "gspo": PolicyObjective(ratio_level="sequence", aggregation=SEQUENCE, clip_dual=None),
    "gepo": PolicyObjective(ratio_level="group", aggregation=SEQUENCE, clip_dual=None),
    "dapo per group": PolicyObjective(clip_high=0.28, aggregation="group-token-mean"),
    "vapo": PolicyObjective(clip_high=0.28, nll_coef=0.1),
    "reinforce, full kl": PolicyObjective(
        policy_loss="reinforce", kl_coef=0.3, kl_estimator="full"
    ),
    "user loss": PolicyObjective(policy_loss=f"{__name__}:squared_ratio"),
    "critic": ValueObjective(clip=0.3),
    "critic, unclipped": ValueObjective(clip=None, aggregation=SEQUENCE),
    "reward model": PreferenceObjective(),
    "ptx": SftObjective(name="ptx"),
}
# With a stop-gradient inside, so that no finite difference of the value is their gradient.
STOPPED: dict[str, Objective] = {
    "cispo": PolicyObjective(policy_loss="cispo"),
    "gspo-token": PolicyObjective(
        ratio_level="sequence-token", aggregation=SEQUENCE, clip_dual=None
    ),
    "k3+": PolicyObjective(kl_coef=0.2, kl_estimator="k3+"),
}


def squared_ratio(ratio, logprobs, advantages, **clips):
    """A user's policy loss."""
    return -advantages * ratio.square()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradient_agrees_with_finite_differences(name):
    """A sign or scale error in any term trains the wrong thing without a crash."""
    objective = OBJECTIVES[name]
    model, batch = ToyLM(), toy_batch(objective.aggregation)
    objective(model(), batch)[0].backward()
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        assert parameter.grad is not None
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        step, ends = 1e-6, []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * step * direction)
                ends.append(float(objective(model(), batch)[0]))
                parameter.add_(-sign * step * direction)
        numeric = (ends[0] - ends[1]) / (2 * step)
        assert float((parameter.grad * direction).sum()) == pytest.approx(numeric, abs=1e-7)


def test_on_policy_gradient_is_the_score_function():
    """At ratio 1 the gradient is -A grad log p, whatever the clips."""
    gradients = []
    for on_policy in (True, False):
        model, batch = ToyLM(), toy_batch()
        outputs = model()
        if on_policy:
            loss, metrics = PolicyObjective(on_policy=True)(outputs, batch)
            assert float(metrics.maxes["actor/ratio_max"]) == 1.0
            assert float(metrics.sums["actor/ppo_kl"]) == 0.0
            assert float(metrics.sums["actor/pg_clipfrac"]) == 0.0
        else:
            loss = -(batch.weights * batch.fields["advantages"] * outputs.logprobs).sum()
        loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", [*OBJECTIVES, *STOPPED])
def test_sums_over_micro_batches_are_the_whole(name):
    """Loss and every summed metric are the same however the tokens are cut."""
    objective, outputs = (OBJECTIVES | STOPPED)[name], ToyLM()()
    batch = toy_batch(objective.aggregation)
    whole, metrics = objective(outputs, batch)
    parts = [objective(cut(outputs, part), cut(batch, part)) for part in (GROUPS < 1, GROUPS >= 1)]
    assert float(sum(loss.detach() for loss, _ in parts)) == pytest.approx(float(whole), abs=1e-12)
    for key, value in metrics.sums.items():
        total = sum(float(found.sums[key]) for _, found in parts)
        assert total == pytest.approx(float(value), abs=1e-12), key
    for key, value in metrics.maxes.items():
        assert max(float(found.maxes[key]) for _, found in parts) == float(value), key


def test_gspo_token_has_gspos_gradient():
    """Equal in value and gradient when a sequence has one advantage (arXiv 2507.18071 eq. 14)."""
    gradients = []
    for level in ("sequence", "sequence-token"):
        model, batch = ToyLM(), toy_batch(SEQUENCE)
        fields = {**batch.fields, "advantages": torch.tensor([0.5, -1.0, 0.7]).double()[ROWS]}
        objective = PolicyObjective(ratio_level=level, aggregation=SEQUENCE, clip_dual=None)
        loss, _ = objective(model(), replace(batch, fields=fields))
        loss.backward()
        gradients.append([loss.detach(), *(p.grad for p in model.parameters())])
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-14)


def test_pg_loss_is_the_policy_loss_alone():
    """A dashboard must not show KL, entropy or likelihood terms as policy loss."""
    extras = PolicyObjective(kl_coef=0.3, entropy_coef=0.2, nll_coef=0.5)
    outputs, batch = ToyLM()(), toy_batch()
    loss, metrics = extras(outputs, batch)
    plain, plain_metrics = PolicyObjective()(outputs, batch)
    assert metrics.sums["actor/pg_loss"] == plain_metrics.sums["actor/pg_loss"] == plain
    nll = -outputs.logprobs[ROWS == 1].mean()
    torch.testing.assert_close(metrics.sums["actor/positive_nll"], nll.detach())
    torch.testing.assert_close(
        loss,
        plain
        + 0.3 * metrics.sums["actor/kl_loss"]
        - 0.2 * metrics.sums["actor/entropy"]
        + 0.5 * nll,
    )


def test_sequence_levels_report_clipped_sequences():
    """Clip fractions of GSPO: tokens of clipped sequences over all tokens, by side."""
    old = torch.tensor([-1.0, -1.5, -2.0]).double()[ROWS]
    advantages = torch.tensor([1.0, -1.0, 1.0]).double()[ROWS]
    batch = toy_batch(SEQUENCE)
    batch = replace(batch, fields={**batch.fields, "old_logprobs": old, "advantages": advantages})
    # Ratios 1.65, 0.61 and 1: clipped from above, from below, not at all.
    logprobs = old + torch.tensor([0.5, -0.5, 0.0]).double()[ROWS]
    objective = PolicyObjective(
        ratio_level="sequence", aggregation=SEQUENCE, clip_dual=None, entropy_coef=None
    )
    _, metrics = objective(TokenOutputs(logprobs), batch)
    found = {key: float(value) for key, value in metrics.sums.items()}
    assert found["actor/pg_clipfrac"] == pytest.approx(5 / 9)
    assert found["actor/clip_ratio_high"] == pytest.approx(3 / 9)
    assert found["actor/clip_ratio_low"] == pytest.approx(2 / 9)
    assert found["actor/pg_loss"] == pytest.approx((-1.2 + 0.8 - 1.0) / 3)


def test_bypass_measures_against_the_sampler():
    """The loss is that of a sampler whose log-probs were scored as old; old ones are not sent."""
    bypass, outputs, batch = PolicyObjective(bypass=True), ToyLM()(), toy_batch()
    assert bypass.fields == ("advantages", "rollout_logprobs")
    assert not PolicyObjective(bypass=True, on_policy=True).fields[2:]
    fields = {**batch.fields, "old_logprobs": batch.fields["rollout_logprobs"]}
    loss, metrics = bypass(outputs, batch)
    expected, _ = PolicyObjective()(outputs, replace(batch, fields=fields))
    assert loss == expected
    assert "training/rollout_probs_diff_mean" not in metrics.sums


def test_the_critics_metrics():
    batch = TokenBatch(
        weights=torch.tensor([0.5, 0.5]),
        mean_weight=0.5,
        rows=torch.tensor([0, 0]),
        fields={"returns": torch.tensor([1.0, 2.0]), "old_values": torch.tensor([0.0, 2.0])},
    )
    loss, metrics = ValueObjective(clip=0.5)(TokenOutputs(values=torch.tensor([1.0, 2.5])), batch)
    # Token 0: V is right, but 1 away from its old value: the bounded 0.5 counts.
    assert float(loss) == pytest.approx(0.5 * (0.5**2 + 0.5**2) / 2)
    assert {key: float(value) for key, value in metrics.sums.items()} == pytest.approx(
        {"critic/vf_loss": 0.125, "critic/vf_clipfrac": 0.5, "critic/vpred_mean": 1.75}
    )


def test_a_perfect_ranking_by_its_known_loss():
    """Scores [2, 1, 0, -1] of one prompt; a tie makes no pair; prompts weigh the same."""
    scores, ranks = (
        torch.tensor([2.0, 1.0, 0.0, -1.0, 5.0, 5.0, 7.0]),
        np.array([0, 1, 2, 3, 1, 2, 1]),
    )
    groups = np.array([0, 0, 0, 0, 1, 1, 1])

    def found(size: int) -> dict[str, float]:
        fields = {
            "ranks": torch.from_numpy(ranks[:size]).float(),
            "pair_weights": torch.from_numpy(pair_weights(ranks[:size], groups[:size])).float(),
        }
        ones = torch.ones(size)
        batch = TokenBatch(ones, 1 / size, ones.long(), fields, torch.from_numpy(groups[:size]))
        _, metrics = PreferenceObjective()(TokenOutputs(values=scores[:size]), batch)
        return {key: float(value) for key, value in metrics.sums.items()}

    assert found(4) == pytest.approx(
        {"reward_model/loss": 0.207038, "reward_model/pair_accuracy": 1.0}, abs=1e-6
    )
    # Of the second prompt's two pairs one is tied in score and one is right.
    second = (np.log(2.0) + np.log1p(np.exp(-2.0))) / 2
    assert found(7)["reward_model/loss"] == pytest.approx((0.207038 + second) / 2, abs=1e-6)
    assert found(7)["reward_model/pair_accuracy"] == pytest.approx(0.75)


def test_metrics_have_the_names_dashboards_expect():
    _, metrics = PolicyObjective(kl_coef=0.1)(ToyLM()(), toy_batch())
    names = ("pg_loss", "ppo_kl", "pg_clipfrac", "pg_clipfrac_lower", "kl_loss", "entropy")
    for name in (*(f"actor/{name}" for name in names), "training/rollout_probs_diff_mean"):
        assert name in metrics.sums
    assert "training/rollout_probs_diff_max" in metrics.maxes


def test_rows_that_can_be_skipped():
    """A row of advantage 0 has no gradient, unless KL, entropy or a loss of one's own gives one."""
    rows = {"advantages": [np.zeros(3), np.array([0.0, 0.5]), np.zeros(1)]}
    skipping = PolicyObjective(skip_zero_advantage=True)
    found = skipping.rows_with_gradient(rows)
    assert found is not None
    assert found.tolist() == [False, True, False]
    fields = {**rows, "nll_weights": [np.array([0.0, 0.1, 0.0]), np.zeros(2), np.zeros(1)]}
    found = replace(skipping, nll_coef=0.1).rows_with_gradient(fields)
    assert found is not None
    assert found.tolist() == [True, True, False]
    for keeps_all in (
        PolicyObjective(),
        replace(skipping, kl_coef=0.1),
        replace(skipping, entropy_coef=0.1),
        replace(skipping, policy_loss="package.module:squared_error"),
    ):
        assert keeps_all.rows_with_gradient(rows) is None


def test_objectives_are_picklable():
    for objective in (OBJECTIVES | STOPPED).values():
        assert pickle.loads(pickle.dumps(objective)) == objective
