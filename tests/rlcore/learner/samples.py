"""Batches for the tiny model, and how weights are compared."""

from pathlib import Path

import numpy as np
import torch

from rlcore.learner.group import LearnerGroup
from rlcore.learner.learner import Learner
from rlcore.models.digest import read_state
from rlcore.models.packing import Sequences

VOCABULARY = 61


def make_batch(num_sequences: int, seed: int = 0) -> Sequences:
    """Ragged sequences of 4 to 40 tokens with every field a policy objective can read."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(4, 41, num_sequences)
    prompts = np.maximum(1, lengths // 3)

    def field(scale: float) -> list[np.ndarray]:
        return [generator.normal(-4, scale, n).astype(np.float32) for n in lengths]

    return Sequences(
        token_ids=[generator.integers(0, VOCABULARY, n).astype(np.int32) for n in lengths],
        prompt_lengths=prompts,
        loss_mask=[np.arange(n) >= p for n, p in zip(lengths, prompts, strict=True)],
        per_token={
            "advantages": [np.full(n, generator.normal(), np.float32) for n in lengths],
            "old_logprobs": field(0.3),
            "rollout_logprobs": field(0.3),
            "ref_logprobs": field(0.5),
        },
    )


def weights_of(learner: Learner | LearnerGroup, path: Path) -> dict[str, torch.Tensor]:
    """The canonical state, through the file that engines read."""
    learner.publish(path / "weights.safetensors")
    return {
        name: tensor.clone() for name, tensor in read_state(path / "weights.safetensors").items()
    }


def assert_same_weights(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-6
) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
