"""The draw itself: right distribution, right tokens kept, right log-probs."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.engines.transformers_engine import choose, processed_logprobs
from rlcore.engines.types import Sampling

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, -9.0]])


def test_frequencies_are_the_probabilities() -> None:
    """A biased draw makes log-probs of another distribution than the one sampled."""
    logprobs = processed_logprobs(LOGITS, Sampling(temperature=0.7))
    uniforms = torch.rand(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = choose(logprobs.expand(len(uniforms), -1), uniforms)
    frequencies = torch.bincount(drawn, minlength=5) / len(uniforms)
    torch.testing.assert_close(frequencies, logprobs.exp()[0], atol=0.004, rtol=0)


def test_hand_computed_distributions() -> None:
    probs = LOGITS[0].softmax(-1)
    cases = {
        Sampling(temperature=0.5): (LOGITS[0] / 0.5).softmax(-1),
        Sampling(temperature=0.0): probs,
        Sampling(top_k=2): torch.cat([probs[:2] / probs[:2].sum(), torch.zeros(3)]),
        Sampling(top_p=0.8): torch.cat([probs[:2] / probs[:2].sum(), torch.zeros(3)]),
        Sampling(top_p=0.01): torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]),
    }
    for sampling, expected in cases.items():
        got = processed_logprobs(LOGITS, sampling).exp()[0]
        torch.testing.assert_close(got, expected, msg=lambda text, s=sampling: f"{s}: {text}")


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([Sampling(top_k=2), Sampling(top_p=0.3)]))
def test_a_dropped_token_is_never_drawn(seed: int, sampling: Sampling) -> None:
    """Its log-prob is -inf; one of them in a batch turns the loss into nan."""
    generator = torch.Generator().manual_seed(seed)
    logprobs = processed_logprobs(torch.randn(64, 11, generator=generator) * 3, sampling)
    uniforms = torch.rand(64, dtype=torch.float64, generator=generator)
    uniforms[:2] = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
    drawn = choose(logprobs, uniforms)
    assert torch.isfinite(logprobs.gather(-1, drawn[:, None])).all()
