"""The head of critic and reward model: one score per token, with a bias, from a known start."""

from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from rlcore.models.value_model import SCORE_BIAS, TokenValueModel, put_score_head
from schemas.errors import UserError


def tiny(**changes: Any) -> Qwen2Config:
    config = Qwen2Config(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
    )
    config.num_labels = 1
    config.update(changes)
    return config


def classifier(dtype: torch.dtype = torch.float32) -> Qwen2ForSequenceClassification:
    torch.manual_seed(0)
    model = Qwen2ForSequenceClassification(tiny())
    return torch.nn.Module.to(model, dtype).eval()  # pyright: ignore[reportReturnType]


INPUT_IDS = torch.arange(12).reshape(2, 6)
POSITION_IDS = torch.arange(6).expand(2, 6)
PREDICTORS = torch.tensor([0, 5, 7])  # row 0: first and last, row 1: second


def values(model: Qwen2ForSequenceClassification) -> torch.Tensor:
    with torch.no_grad():
        return TokenValueModel(model)(INPUT_IDS, POSITION_IDS, PREDICTORS)[0]


def test_scores_are_the_models_own_and_the_bias() -> None:
    model = classifier()
    with torch.no_grad():
        hidden = model.model(INPUT_IDS, position_ids=POSITION_IDS).last_hidden_state
        plain = model.score(hidden)[[0, 0, 1], [0, 5, 1], 0]
    put_score_head(model, torch.tensor([0.25]), fresh=False)
    torch.testing.assert_close(values(model), plain + 0.25)
    assert SCORE_BIAS in model.state_dict(), "a bias that is not saved is lost with the checkpoint"


def test_a_fresh_head_says_zero_everywhere() -> None:
    """Noise would be the first baseline of every advantage."""
    model = classifier()
    put_score_head(model, None, fresh=True)
    assert values(model).tolist() == [0.0, 0.0, 0.0]


def test_scores_of_bfloat16_weights_are_float32() -> None:
    model = classifier(torch.bfloat16)
    put_score_head(model, torch.tensor([1e-4]), fresh=False)
    assert values(model).dtype == torch.float32


@pytest.mark.parametrize("model", [Qwen2ForCausalLM, Qwen2ForSequenceClassification])
def test_a_head_that_is_not_one_score_is_refused(model: Any) -> None:
    many = model(tiny(num_labels=2))
    with pytest.raises(UserError, match=rf"{model.__name__} has no linear 'score' head with one"):
        put_score_head(many, None, fresh=True)
