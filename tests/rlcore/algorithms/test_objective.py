"""The composed objectives, on a two-layer language model in float64."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlcore.algorithms.aggregation import token_weights
from rlcore.algorithms.entropy import categorical_entropy
from rlcore.algorithms.objective import PolicyObjective, SftObjective, TokenBatch, TokenOutputs

TOKENS, VOCABULARY = 9, 5
ROWS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])


def toy_batch(aggregation: str = "token-mean") -> TokenBatch:
    generator = torch.Generator().manual_seed(1)
    weights = token_weights(aggregation, np.bincount(ROWS.numpy()), horizon=4)
    # Old log-probs far enough apart that both clips and the dual clip are active somewhere.
    fields = {
        name: -1.6 + scale * torch.randn(TOKENS, generator=generator, dtype=torch.float64)
        for name, scale in [("old_logprobs", 1.0), ("rollout_logprobs", 0.1), ("ref_logprobs", 0.5)]
    }
    fields["advantages"] = torch.randn(TOKENS, generator=generator, dtype=torch.float64)
    return TokenBatch(torch.tensor(weights)[ROWS], 1 / TOKENS, ROWS, fields)


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
            torch.nn.Linear(6, VOCABULARY),
        ).double()

    def forward(self) -> TokenOutputs:
        ids = torch.arange(TOKENS) % VOCABULARY
        log_softmax = torch.log_softmax(self.layers(ids), -1)
        logprobs = log_softmax.gather(-1, (ids[:, None] * 3 + 1) % VOCABULARY).squeeze(-1)
        return TokenOutputs(logprobs, categorical_entropy(log_softmax))


OBJECTIVES = {
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
}


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
    """SPEC invariant 2: at ratio 1 the gradient is -A grad log p, whatever the clips."""
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


@pytest.mark.parametrize("name", OBJECTIVES)
def test_sums_over_micro_batches_are_the_whole(name):
    """Loss and every summed metric are the same however the tokens are cut."""
    objective, outputs = OBJECTIVES[name], ToyLM()()
    batch = toy_batch(objective.aggregation)
    whole, metrics = objective(outputs, batch)
    parts = []
    for part in (ROWS < 1, ROWS >= 1):
        fields = {field: values[part] for field, values in batch.fields.items()}
        cut = replace(batch, weights=batch.weights[part], rows=ROWS[part], fields=fields)
        parts.append(objective(TokenOutputs(outputs.logprobs[part], outputs.entropy[part]), cut))
    assert float(sum(loss for loss, _ in parts)) == pytest.approx(float(whole), abs=1e-12)
    for key, value in metrics.sums.items():
        total = sum(float(found.sums[key]) for _, found in parts)
        assert total == pytest.approx(float(value), abs=1e-12), key
    for key, value in metrics.maxes.items():
        assert max(float(found.maxes[key]) for _, found in parts) == float(value), key


def test_metrics_have_the_names_dashboards_expect():
    _, metrics = PolicyObjective(kl_coef=0.1)(ToyLM()(), toy_batch())
    names = ("pg_loss", "ppo_kl", "pg_clipfrac", "pg_clipfrac_lower", "kl_loss", "entropy")
    for name in (*(f"actor/{name}" for name in names), "training/rollout_probs_diff_mean"):
        assert name in metrics.sums
    assert "training/rollout_probs_diff_max" in metrics.maxes


def test_entropy_of_a_categorical_in_closed_form():
    log_softmax = torch.log(torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]))
    np.testing.assert_allclose(
        categorical_entropy(log_softmax), [1.5 * np.log(2), np.log(3)], rtol=1e-6
    )


def test_rows_that_may_be_skipped():
    """A row of advantage 0 has no gradient, unless KL or entropy gives it one."""
    rows = {"advantages": [np.zeros(3), np.array([0.0, 0.5]), np.zeros(1)]}
    skipping = PolicyObjective(skip_zero_advantage=True)
    found = skipping.rows_with_gradient(rows)
    assert found is not None
    assert found.tolist() == [False, True, False]
    for keeps_all in (
        PolicyObjective(),
        replace(skipping, kl_coef=0.1),
        replace(skipping, entropy_coef=0.1),
    ):
        assert keeps_all.rows_with_gradient(rows) is None


def test_objectives_travel_between_processes():
    for objective in OBJECTIVES.values():
        assert pickle.loads(pickle.dumps(objective)) == objective
