"""What an objective of the user's own gets without writing it, and what it must write."""

import subprocess
import sys

import torch

from rlcore.algorithms.objective_types import Metrics, Objective, TokenBatch, TokenOutputs


class Likelihood(Objective):
    """The least that trains: a name, an aggregation and a formula."""

    @property
    def name(self) -> str:
        return "mine"

    @property
    def aggregation(self) -> str:
        return "token-mean"

    def __call__(self, outputs: TokenOutputs, batch: TokenBatch) -> tuple[torch.Tensor, Metrics]:
        return -(batch.weights * outputs.logprobs).sum(), Metrics()


def test_name_aggregation_and_formula_are_enough() -> None:
    """Each default is the plain case: every row, language model, no entropy, no reference."""
    mine = Likelihood()
    assert (mine.head, mine.targets, mine.temperature) == ("lm", "loss_mask", 1.0)
    assert (mine.fields, mine.whole_groups, mine.horizon) == ((), False, None)
    assert (mine.entropy_grad, mine.full_kl) == (None, False)
    assert mine.rows_with_gradient({}) is None
    batch = TokenBatch(torch.ones(2), 0.5, torch.zeros(2), {})
    loss, metrics = mine(TokenOutputs(logprobs=torch.tensor([-1.0, -2.0])), batch)
    assert float(loss) == 3.0
    assert metrics.sums == metrics.maxes == {}


def test_what_was_not_asked_for_is_empty_and_not_shared() -> None:
    """One default tensor for all would carry a value from batch to batch."""
    one, other = TokenOutputs(), TokenOutputs()
    for name in ("logprobs", "entropy", "kl", "values"):
        assert getattr(one, name).numel() == 0
        assert getattr(one, name) is not getattr(other, name)
    assert Metrics().sums is not Metrics().sums


def test_an_objective_is_described_without_torch() -> None:
    """The flow's process sends objectives to the learner; torch would cost it seconds."""
    code = "import sys, rlcore.algorithms.objective_types; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
