"""The FLOPs that a figure of utilisation rests on, against a count of every product."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from rlcore.learner.utilisation import TrainingCost, training_cost

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
}


@pytest.mark.parametrize("tied", [True, False])
def test_flops_are_those_that_torch_counts(tied: bool) -> None:
    """Torch counts the whole attention matrix, of which a causal one needs half."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied))
    model.set_attn_implementation("eager")
    rows, length = 5, 33
    ids = torch.randint(SIZES["vocab_size"], (rows, length))
    counter = FlopCounterMode(display=False)
    with counter:
        model(ids, use_cache=False).logits.sum().backward()
    cost = training_cost(model)
    attention = cost.attention_width * rows * length**2
    counted = cost.flops(rows * length, rows * length**2) + 6.0 * attention
    assert counter.get_total_flops() == pytest.approx(counted, rel=0.01)


def test_an_untied_embedding_is_looked_up_and_not_multiplied() -> None:
    tied, untied = (
        training_cost(LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=flag)))
        for flag in (True, False)
    )
    assert tied == untied
    assert tied.attention_width == 3 * 48


def test_of_experts_those_count_that_a_token_is_sent_to() -> None:
    def parameters(experts: int) -> int:
        config = MixtralConfig(**SIZES, num_local_experts=experts, num_experts_per_tok=2)
        cost: TrainingCost = training_cost(MixtralForCausalLM(config))
        return cost.parameters

    router = 3 * 48 * 4  # a row of the router per expert and layer
    assert parameters(8) - parameters(4) == router
