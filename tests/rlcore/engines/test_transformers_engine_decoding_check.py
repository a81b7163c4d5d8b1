"""A decoder that computes something else than its model is found as the engine is built."""

from typing import Any

import pytest
import torch

from rlcore.engines.transformers_engine import FURTHEST, shares_prompts
from rlcore.engines.types import NOISE
from schemas.errors import UserError
from tests.rlcore.engines.models import LLAMA_LIKE, OTHERS


def _noisy(kind: str, dtype: torch.dtype) -> Any:
    """A model as a new engine has it."""
    model = (LLAMA_LIKE | OTHERS)[kind]().to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.requires_grad_(False).parameters():
        parameter.uniform_(-NOISE, NOISE, generator=generator)
    return model


QWEN2 = "Qwen2, tied"


@pytest.mark.parametrize("dtype", FURTHEST)
@pytest.mark.parametrize("kind", [*LLAMA_LIKE, *OTHERS])
def test_prompts_are_shared_where_that_is_the_models_own_attention(
    kind: str, dtype: torch.dtype
) -> None:
    model = _noisy(kind, dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert shares_prompts(model) == (kind != "sliding window")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("kind", ["takes it and drops it", "takes no more"])
def test_a_model_whose_attention_cannot_be_told_keeps_each_rows_prompt(kind: str) -> None:
    """Its attention never sees which rows share; what it would read instead is found wrong."""
    model = _noisy(QWEN2, torch.float32)
    forward = type(model.model).forward

    def closed(continued: Any = None, **given: Any) -> Any:
        if continued is not None and kind == "takes no more":
            raise TypeError("forward() got an unexpected keyword argument 'continued'")
        return forward(model.model, **given)

    model.model.forward = closed
    assert not shares_prompts(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_model_that_keys_do_not_continue_is_refused() -> None:
    """Another memory than keys and values, as recurrences have it."""
    model = _noisy(QWEN2, torch.float32)
    forward = type(model.model).forward

    def forgetful(**given: Any) -> Any:
        found = forward(model.model, **given)
        earlier = given["input_ids"].float().cumsum(-1) / 60.0
        found.last_hidden_state = found.last_hidden_state + earlier[..., None]
        return found

    model.model.forward = forgetful
    with pytest.raises(UserError, match=r"does not decode Qwen2ForCausalLM .* set it to vllm"):
        shares_prompts(model)
