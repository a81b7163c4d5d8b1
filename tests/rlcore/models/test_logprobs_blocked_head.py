"""Log-probs, entropies and gradients over blocks are those of one log-softmax over everything."""

import pytest
import torch
from torch import nn

from rlcore.models import logprobs
from rlcore.models.architectures import FinalLogits
from rlcore.models.logprobs import BlockedScores, plain_weight, scores_of_logits

TOKENS, VOCABULARY, HIDDEN = 23, 97, 16


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    hidden = (2 * torch.randn(TOKENS, HIDDEN)).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, HIDDEN).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, VOCABULARY, (TOKENS,))


def blocked_scores(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target_ids: torch.Tensor,
    temperature: float = 1.0,
    entropy_grad: bool | None = None,
    final: FinalLogits = FinalLogits(),  # noqa: B008 - frozen
) -> tuple[torch.Tensor, torch.Tensor]:
    return BlockedScores.apply(hidden, weight, target_ids, temperature, entropy_grad, final)


def loss_of(logprobs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    """Another upstream gradient per token, and the entropy's where it has one."""
    loss = (logprobs * torch.linspace(-1, 2, TOKENS)).sum()
    return loss + entropies.square().sum() if entropies.requires_grad else loss


@pytest.fixture(params=[1, 7 * TOKENS, VOCABULARY * TOKENS], ids=["1", "7", "all"])
def _block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one column, of seven with a rest, and a single one."""
    monkeypatch.setattr(logprobs, "BLOCK_LOGITS", request.param)


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize("entropy_grad", [None, False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("final", [FinalLogits(), FinalLogits(0.3, 1.5), FinalLogits(cap=0.8)])
def test_blocks_change_nothing(
    temperature: float, entropy_grad: bool | None, final: FinalLogits
) -> None:
    found, expected = [], []
    for results in (found, expected):
        hidden, weight, ids = inputs()
        if results is found:
            scores = blocked_scores(hidden, weight, ids, temperature, entropy_grad, final)
        else:
            logits = final(hidden @ weight.t())
            scores = scores_of_logits(logits, ids, temperature, entropy_grad)[:2]
        assert scores[0].dtype == torch.float32
        assert scores[1].requires_grad is bool(entropy_grad)
        loss_of(*scores).backward()
        results += [*scores, hidden.grad, weight.grad]
    for ours, theirs in zip(found, expected, strict=True):
        # Sums over 97 blocks of one column round; without AVX-512 by 4e-5 of a gradient.
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_block")
def test_what_else_is_wanted_does_not_change_a_bit_of_the_log_probs() -> None:
    """Scoring asks for no gradient and training may ask for one of the entropy: first ratios are
    exactly 1."""
    hidden, weight, ids = inputs()
    expected, _ = blocked_scores(hidden, weight, ids, 0.7)
    for entropy_grad in (False, True):
        found, _ = blocked_scores(hidden, weight, ids, 0.7, entropy_grad)
        assert torch.equal(found, expected)
    with torch.no_grad():
        found, entropies = blocked_scores(hidden, weight, ids, 0.7, entropy_grad=True)
    assert torch.equal(found, expected)
    assert not found.requires_grad
    assert not entropies.requires_grad


def test_a_frozen_weight_or_hidden_state_costs_no_gradient() -> None:
    expected = inputs()
    blocked_scores(*expected)[0].sum().backward()
    for frozen in (0, 1):
        given = inputs()
        given[frozen].requires_grad_(False)
        blocked_scores(*given)[0].sum().backward()
        ours, theirs = given[1 - frozen].grad, expected[1 - frozen].grad
        assert given[frozen].grad is None
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("_block")
def test_bf16_gradients_are_as_near_as_those_of_one_product() -> None:
    """Tokens that are all but certain have gradients far below bf16's rounding of 1."""
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        for blocked in (True, False):
            hidden, weight, ids = inputs(torch.bfloat16)
            ids = (hidden @ weight.t()).argmax(1)
            hidden, weight = (x.detach().to(dtype).requires_grad_() for x in (hidden, weight))
            if blocked:
                logprobs, _ = blocked_scores(hidden, weight, ids)
            else:
                logprobs, *_ = scores_of_logits(hidden @ weight.t(), ids)
            logprobs.sum().backward()
            assert hidden.grad is not None
            assert weight.grad is not None
            assert (hidden.grad.dtype, weight.grad.dtype) == (dtype, dtype)
            gradients.append(torch.cat([hidden.grad.flatten(), weight.grad.flatten()]).float())
    exact, _, ours, theirs = gradients
    assert (ours - exact).norm() <= 1.1 * (theirs - exact).norm()


def test_a_head_with_more_to_it_is_called_as_a_module() -> None:
    """A hook gathers ZeRO 3's shards, and another class multiplies otherwise."""

    class Scaled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    plain = nn.Linear(4, 9, bias=False)
    assert plain_weight(plain) is plain.weight
    for head in (nn.Linear(4, 9), Scaled(4, 9, bias=False), nn.Sequential(plain)):
        assert plain_weight(head) is None
    for add in (plain.register_forward_hook, plain.register_forward_pre_hook):
        handle = add(lambda *_: None)
        assert plain_weight(plain) is None
        handle.remove()
    assert plain_weight(plain) is plain.weight
