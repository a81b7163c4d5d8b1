import pytest
import torch
from transformers import (
    AutoConfig,
    CohereConfig,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
)

from rlcore.models.architectures import FinalLogits, caps_attention, final_logits, plain_attention


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LlamaConfig(), FinalLogits()),
        (Gemma2Config(), FinalLogits(cap=30.0)),
        (Gemma2Config(final_logit_softcapping=None), FinalLogits()),
        (Gemma3TextConfig(), FinalLogits()),
        (GraniteConfig(logits_scaling=8.0), FinalLogits(scale=0.125)),
        (CohereConfig(logit_scale=0.0625), FinalLogits(scale=0.0625)),
        (FalconH1Config(lm_head_multiplier=0.5), FinalLogits(scale=0.5)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_is_done_to_logits_is_read_from_the_config(
    config: AutoConfig, expected: FinalLogits
) -> None:
    assert final_logits(config) == expected


def test_the_slope_is_the_derivative() -> None:
    product = torch.linspace(-4, 4, 9, requires_grad=True)
    final = FinalLogits(0.7, 1.5)
    logits = final(product)
    logits.sum().backward()
    torch.testing.assert_close(final.slope(logits.detach()), product.grad)
    assert FinalLogits()(product) is product


def test_sdpa_is_not_taken_where_it_would_leave_out_a_cap() -> None:
    assert caps_attention(Gemma2Config())
    assert plain_attention(Gemma2Config()) == "eager"
    assert plain_attention(Gemma3TextConfig()) == plain_attention(LlamaConfig()) == "sdpa"
