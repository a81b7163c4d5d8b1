"""Attention by blocks against one sequence at a time: outputs and gradients."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlcore.models.gpu.block_attention import attend_by_blocks
from rlcore.models.gpu.blocks import BLOCKS
from rlcore.models.logprobs import TokenLogprobModel
from rlcore.models.packing import Sequences, pack

LENGTHS = np.clip(np.random.default_rng(3).lognormal(2.5, 0.9, 24).astype(np.int64), 2, 90)


def model_of(attention: str, dtype: torch.dtype = torch.float32, dim: int = 8) -> TokenLogprobModel:
    """Two heads of queries, of ``dim`` dimensions, for each of keys; biases and weights far from
    their initial zeros."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=50,
        hidden_size=4 * dim,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
    )
    lm = Qwen2ForCausalLM(config)
    lm.set_attn_implementation(attention)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.normal_(0.0, 0.2)
    torch.nn.Module.to(lm, dtype)
    return TokenLogprobModel(lm).train()


def sequences() -> Sequences:
    rng = np.random.default_rng(1)
    ids = [rng.integers(0, 50, length) for length in LENGTHS]
    return Sequences(ids, [np.arange(len(row)) > 0 for row in ids])


def passed(model: TokenLogprobModel, budget: int, *, blocks: bool) -> np.ndarray:
    """Log-probs of all tokens; the gradient of a fixed sum of them is left in the model."""
    batch, flat = sequences(), np.zeros(int(LENGTHS.sum()), dtype=np.float32)
    weights = torch.from_numpy(np.random.default_rng(2).normal(size=len(flat))).float()
    for part in pack(batch, micro_batch_tokens=budget, blocks=blocks, one_per_row=not blocks):
        fields = (part.input_ids, part.position_ids, part.predictors, part.target_ids)
        inputs = [torch.from_numpy(field) for field in fields]
        logprobs, *_ = model(*inputs, blocks=part.blocks)
        (logprobs * weights[part.sources]).sum().backward()
        flat[part.sources] = logprobs.detach().numpy()
    return flat


@pytest.mark.parametrize("dim", [8, 16])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("budget", [100, 4096])
def test_outputs_and_gradients_are_those_of_each_sequence_alone(budget, checkpointing, dim) -> None:
    alone, ours = model_of("sdpa", dim=dim), model_of(BLOCKS, dim=dim)
    if checkpointing:
        ours.lm.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    expected, found = passed(alone, 100, blocks=False), passed(ours, budget, blocks=True)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    for one, other in zip(alone.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-4)


def test_bfloat16_rounds_no_more_than_one_sequence_a_row_does() -> None:
    exact = passed(model_of("sdpa"), 4096, blocks=False)
    gaps = [
        np.abs(passed(model_of(name, torch.bfloat16), 4096, blocks=name == BLOCKS) - exact)
        for name in ("sdpa", BLOCKS)
    ]
    assert gaps[1].mean() < 1.5 * gaps[0].mean()


def test_a_sequence_is_the_same_whatever_lies_beside_it() -> None:
    """Other tokens in every other sequence: not a bit of this one moves."""
    model, found = model_of(BLOCKS), []
    for seed in (4, 5):
        batch = sequences()
        rng = np.random.default_rng(seed)
        batch.token_ids[1:] = [rng.integers(0, 50, len(row)) for row in batch.token_ids[1:]]
        (part,) = pack(batch, micro_batch_tokens=4096, targets="all", blocks=True)
        fields = (part.input_ids, part.position_ids, part.predictors, part.target_ids)
        logprobs, *_ = model(*map(torch.from_numpy, fields), blocks=part.blocks)
        found.append(logprobs[torch.from_numpy(part.sequences == 0)])
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sliding_window": 4}, "sliding_window"),
        ({"softcap": 30.0}, "softcap"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "no causality"),
        ({"attention_mask": torch.ones(1, 1, 3, 3)}, "attention_mask"),
    ],
)
def test_what_is_not_computed_is_refused(options, named) -> None:
    zeros = torch.zeros(1, 2, 3, 4)
    asked: dict[str, Any] = {"attention_mask": None, **options}
    with pytest.raises(ValueError, match=f"Module asks for {named}"):
        attend_by_blocks(torch.nn.Module(), zeros, zeros, zeros, **asked)
