"""The policy losses per token, by hand and against finite differences."""

import numpy as np
import pytest
import torch

from rlcore.algorithms.losses import LOSSES, RATIOS, clipped_surrogate, policy_loss
from schemas.errors import UserError

CLIP = {"clip_low": 0.2, "clip_high": 0.28, "clip_dual": 3.0}
ROWS = torch.arange(40) // 5


def loss_of(ratio: float, advantage: float, *, low=0.2, high=0.2, dual=None) -> float:
    return float(
        clipped_surrogate(
            torch.tensor([ratio], dtype=torch.float64),
            torch.tensor([advantage], dtype=torch.float64),
            clip_low=low,
            clip_high=high,
            clip_dual=dual,
        ).loss
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1, -1.2), (0.5, 1, -0.5), (0.5, -1, 0.8), (1.5, -1, 1.5)],
)
def test_clipped_surrogate(ratio, advantage, expected):
    """PPO's clip, arXiv 1707.06347 eq. 7."""
    assert loss_of(ratio, advantage) == pytest.approx(expected, abs=1e-12)


def test_clip_higher_and_dual_clip():
    """Clip-higher (arXiv 2503.14476) and dual clip (arXiv 1912.09729 eq. 5)."""
    assert loss_of(1.5, 1, high=0.28) == pytest.approx(-1.28)
    assert loss_of(1.25, 1, high=0.28) == pytest.approx(-1.25)
    assert loss_of(5.0, -1, dual=3.0) == pytest.approx(3.0)
    assert loss_of(5.0, -1) == pytest.approx(5.0)
    assert loss_of(5.0, 1, dual=3.0) == pytest.approx(-1.2)


def test_dual_clip_stops_the_gradient_of_runaway_ratios():
    for value, expected in [(2.0, 1.0), (3.5, 0.0)]:
        ratio = torch.tensor([value], requires_grad=True)
        clipped_surrogate(
            ratio, torch.tensor([-1.0]), clip_low=0.2, clip_high=0.2, clip_dual=3.0
        ).loss.sum().backward()
        assert ratio.grad is not None
        assert float(ratio.grad) == expected


def test_what_is_reported_as_clipped():
    ratio = torch.tensor([1.5, 0.5, 0.5, 5.0, 1.0])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
    found = clipped_surrogate(ratio, advantages, clip_low=0.2, clip_high=0.2, clip_dual=3.0)
    assert found.clipped.tolist() == [True, False, True, False, False]
    assert found.outside_low.tolist() == [False, False, True, False, False]
    assert found.clipped_dual.tolist() == [False, False, False, True, False]


def draw(seed: int, shift: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return shift + torch.randn(len(ROWS), generator=generator, dtype=torch.float64)


def test_clip_is_the_surrogate():
    logprobs, old, advantages = draw(0, -2), draw(1, -2), draw(2)
    ratio = RATIOS["token"](logprobs, old, ROWS)
    found = policy_loss("clip", ratio, logprobs, advantages, **CLIP)
    expected = clipped_surrogate(ratio, advantages, **CLIP)
    torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-14)
    assert found.clipped_dual.tolist() == expected.clipped_dual.tolist()


def test_cispo_bounds_the_weight_and_keeps_every_gradient():
    """Ratios .5, 1, 1.5 weigh .8, 1, 1.28; where the surrogate would be silent a token still
    learns, which is the point of CISPO."""
    logprobs = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64, requires_grad=True)
    ratio = (
        torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64) * (logprobs - logprobs.detach()).exp()
    )
    advantages = torch.tensor([-1.0, 2.0, 1.0], dtype=torch.float64)
    found = policy_loss("cispo", ratio, logprobs, advantages, **CLIP)
    np.testing.assert_allclose(found.loss.detach(), [-0.8, 4.0, 3.84], atol=1e-12)
    assert found.clipped.tolist() == [True, False, True]
    assert found.outside_low.tolist() == [True, False, False]
    assert not found.clipped_dual.any()
    found.loss.sum().backward()
    assert logprobs.grad is not None
    np.testing.assert_allclose(logprobs.grad, [0.8, -2.0, -1.28], atol=1e-12)


def test_reinforce_is_the_score_function_at_any_ratio():
    """The plain form of the RLOO paper (arXiv 2402.14740), as an option."""
    logprobs, advantages = draw(0, -2).requires_grad_(), draw(1)
    found = policy_loss("reinforce", 5 * logprobs.detach().exp(), logprobs, advantages, **CLIP)
    found.loss.sum().backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, -advantages)
    assert not (found.clipped | found.clipped_dual | found.outside_low).any()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_gradient_agrees_with_finite_differences(name, level):
    """With the ratio's own path: clip differentiates it, cispo and reinforce must not."""
    old, advantages = draw(1, -2), draw(2)
    logprobs = draw(0, -2).requires_grad_()
    frozen = RATIOS[level](logprobs.detach(), old, ROWS)

    def loss(logprobs: torch.Tensor, ratio: torch.Tensor | None = None) -> torch.Tensor:
        ratio = RATIOS[level](logprobs, old, ROWS) if ratio is None else ratio
        return policy_loss(name, ratio, logprobs, advantages, **CLIP).loss.sum()

    if name == "clip":
        assert torch.autograd.gradcheck(loss, logprobs)
        return
    assert torch.autograd.gradcheck(lambda logprobs: loss(logprobs, frozen), logprobs)
    (whole,) = torch.autograd.grad(loss(logprobs), logprobs)
    (through_logprobs,) = torch.autograd.grad(loss(logprobs, frozen), logprobs)
    torch.testing.assert_close(whole, through_logprobs, rtol=0, atol=1e-14)


def test_a_users_loss(tmp_path, monkeypatch):
    (tmp_path / "my_losses.py").write_text(
        "def squared(ratio, logprobs, advantages, *, clip_low, clip_high, clip_dual):\n"
        "    return (ratio - 1) ** 2 * advantages + clip_low\n"
        "def reduced(ratio, logprobs, advantages, **clips):\n"
        "    return ratio.mean()\n"
        "def forgotten(ratio, logprobs, advantages, **clips):\n"
        "    ratio * advantages\n"
        "def wrong(ratio, logprobs, advantages, **clips):\n"
        "    return ratio @ ratios\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ratio, advantages = torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0])
    found = policy_loss("my_losses:squared", ratio, ratio, advantages, **CLIP)
    np.testing.assert_allclose(found.loss, [0.2, 8.2], rtol=1e-6)
    assert found.clipped.tolist() == [False, False]
    with pytest.raises(UserError, match=r"returned shape \(\); it must return one loss per token"):
        policy_loss("my_losses:reduced", ratio, ratio, advantages, **CLIP)
    with pytest.raises(UserError, match=r"my_losses:forgotten' failed: .*it returned NoneType"):
        policy_loss("my_losses:forgotten", ratio, ratio, advantages, **CLIP)
    with pytest.raises(UserError, match=r"NameError: .*ratios.* \(my_losses.py line 8\); correct"):
        policy_loss("my_losses:wrong", ratio, ratio, advantages, **CLIP)


def test_unknown_names_are_answered_with_the_nearest():
    one = torch.zeros(1)
    with pytest.raises(UserError, match=r"policy_loss = 'cipso' is unknown.*did you mean 'cispo'"):
        policy_loss("cipso", one, one, one, **CLIP)
    with pytest.raises(UserError, match=r"must be written 'package.module:function'"):
        policy_loss("my.module:", one, one, one, **CLIP)
