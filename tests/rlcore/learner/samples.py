"""A tiny model, batches for it, a step by other means, and how weights are compared."""

from pathlib import Path

import numpy as np
import torch

from rlcore.algorithms.aggregation import token_weights
from rlcore.algorithms.objective import Objective, TokenBatch, TokenOutputs
from rlcore.learner.group import LearnerGroup
from rlcore.learner.learner import Learner
from rlcore.learner.spec import LearnerSpec
from rlcore.models.digest import read_state
from rlcore.models.packing import Sequences

VOCABULARY = 61


def write_tiny_model(path: Path) -> None:
    """Qwen2, two layers, tied head, with dropout configured so that forgetting to stop it shows."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(7)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        tie_word_embeddings=True,
        max_position_embeddings=128,
        attention_dropout=0.5,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config)
    for parameter in model.parameters():  # from scratch, logits are almost 0 and hide errors
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")


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
            "returns": field(1.0),
            "old_values": field(0.1),
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


def reference_step(
    spec: LearnerSpec, batch: Sequences, objective: Objective, lr: float
) -> tuple[dict[str, torch.Tensor], float]:
    """One step by Hugging Face and torch alone, on CPU: a sequence at a time, no packing.

    Returns the canonical state afterwards and the gradient norm before clipping.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(spec.model_dir).eval()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=lr,
        betas=spec.betas,
        eps=spec.eps,
        weight_decay=spec.weight_decay,
    )
    lengths = np.array([mask.sum() for mask in batch.loss_mask])
    weights = token_weights(objective.aggregation, lengths, horizon=objective.horizon)
    for row, ids in enumerate(batch.token_ids):
        targets = torch.from_numpy(np.flatnonzero(batch.loss_mask[row]))
        logits = model(torch.from_numpy(ids).long()[None]).logits[0, targets - 1]
        log_softmax = torch.log_softmax(logits / objective.temperature, -1)
        chosen = torch.from_numpy(ids).long()[targets]
        outputs = TokenOutputs(
            log_softmax.gather(-1, chosen[:, None]).squeeze(-1),
            -(log_softmax.exp() * log_softmax).sum(-1),
        )
        fields = {n: torch.from_numpy(v[row])[targets] for n, v in batch.per_token.items()}
        known = TokenBatch(
            torch.full((len(targets),), weights[row], dtype=torch.float32),
            1.0 / lengths.sum(),
            torch.zeros_like(targets),
            fields,
        )
        objective(outputs, known)[0].backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), spec.grad_clip or float("inf"))
    optimizer.step()
    state = {n: t for n, t in model.state_dict().items() if n != "lm_head.weight"}
    return state, float(norm)
