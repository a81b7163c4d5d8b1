"""A tiny model, batches for it, a step by other means, and how weights are compared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlcore.algorithms.aggregation import token_weights
from rlcore.algorithms.objective import PolicyObjective
from rlcore.algorithms.objective_types import TokenBatch, TokenOutputs
from rlcore.learner.learner import Learner
from rlcore.learner.spec import LearnerSpec, Term, UpdateRequest
from rlcore.models.architectures import caps_attention
from rlcore.models.packing import Sequences
from rlcore.models.weight_files import read_checkpoint, read_state, write_state
from rlcore.models.weight_names import file_state

VOCABULARY = 61


def write_tiny_model(path: Path, *, seed: int = 7, head: str = "lm") -> None:
    """Qwen2, two layers, tied head, with dropout configured so that forgetting to stop it shows.

    ``head`` "value": a classifier with a score bias instead.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

    torch.manual_seed(seed)
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
    config.num_labels = 1
    model = Qwen2ForCausalLM(config) if head == "lm" else Qwen2ForSequenceClassification(config)
    for parameter in model.parameters():  # from scratch, logits are almost 0 and hide errors
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(path)
    if head == "value":
        state = read_state(path / "model.safetensors")
        write_state(path / "model.safetensors", {**state, "score.bias": torch.tensor([0.3])})
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


def request_of(version: int, digest: str, seed: int = 0) -> UpdateRequest:
    """An update of two steps."""
    batches = [[Term(make_batch(6, seed + step), PolicyObjective())] for step in range(2)]
    return UpdateRequest(version, digest, batches, [0.05, 0.04])


def weights_of(learner: Any) -> dict[str, torch.Tensor]:
    """The canonical state, through the file that engines read."""
    return {name: tensor.clone() for name, tensor in read_state(learner.publish().path).items()}


def assert_same_weights(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-6
) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def gradient_of(learner: Learner, terms: Sequence[Term]) -> dict[str, torch.Tensor]:
    """The gradient of ``terms``, read off one AdamW step of a fresh learner.

    With eps = 1 and without decay and clipping the first step at rate 1 moves by g / (|g| + 1).
    """
    before = weights_of(learner)
    learner.step(terms, 1.0)
    moves = {name: before[name] - tensor for name, tensor in weights_of(learner).items()}
    return {name: move / (1.0 - move.abs()) for name, move in moves.items()}


def reference_step(
    spec: LearnerSpec, terms: Sequence[Term], lr: float
) -> tuple[dict[str, torch.Tensor], float]:
    """One step by Hugging Face and torch alone, on CPU: a sequence at a time, no packing.

    Returns the state afterwards, in file names, and the gradient norm before clipping.
    """
    model = _reference_model(spec)
    frozen = None
    if spec.reference_dir is not None:
        frozen = _reference_model(replace(spec, model_dir=spec.reference_dir))
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=lr,
        betas=spec.betas,
        eps=spec.eps,
        weight_decay=spec.weight_decay,
    )
    for term in terms:
        (term.coef * _reference_loss(model, frozen, term)).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), spec.grad_clip or float("inf"))
    optimizer.step()
    return file_state(model), float(norm)


def _reference_model(spec: LearnerSpec) -> Any:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
    )

    if spec.head == "lm":
        capped = caps_attention(AutoConfig.from_pretrained(spec.model_dir))
        return AutoModelForCausalLM.from_pretrained(
            spec.model_dir, attn_implementation="eager" if capped else None
        ).eval()
    model = AutoModelForSequenceClassification.from_pretrained(spec.model_dir).eval()
    bias = read_checkpoint(spec.model_dir)["score.bias"].clone()
    model.score.bias = torch.nn.Parameter(bias)  # read by Linear.forward
    return model


def _reference_loss(model: Any, frozen: Any | None, term: Term) -> torch.Tensor:
    """``term``'s loss, its targets gathered one sequence at a time."""
    batch, objective = term.sequences, term.objective
    last = objective.targets == "last"
    masks = [np.arange(len(m)) == len(m) - 1 for m in batch.loss_mask] if last else batch.loss_mask
    lengths = np.array([mask.sum() for mask in masks])
    weights = token_weights(
        objective.aggregation, lengths, horizon=objective.horizon, groups=batch.groups
    )
    outputs, rows = [], []
    for row, (ids, mask) in enumerate(zip(batch.token_ids, masks, strict=True)):
        places = torch.from_numpy(np.flatnonzero(mask))
        rows.append(torch.full((len(places),), row))
        tokens = torch.from_numpy(ids).long()
        if objective.head == "value":
            hidden = model.base_model(tokens[None]).last_hidden_state
            outputs.append((model.score(hidden)[0, :, 0][places if last else places - 1],))
            continue
        log_softmax = _log_softmax(model, tokens, objective.temperature)[places - 1]
        kl = torch.zeros(0)
        if frozen is not None:
            with torch.no_grad():
                theirs = _log_softmax(frozen, tokens, objective.temperature)[places - 1]
            kl = torch.nn.functional.kl_div(theirs, log_softmax, reduction="none", log_target=True)
            kl = kl.sum(-1)
        chosen = log_softmax.gather(-1, tokens[places][:, None]).squeeze(-1)
        outputs.append((chosen, -(log_softmax.exp() * log_softmax).sum(-1), kl))
    parts = [torch.cat(column) for column in zip(*outputs, strict=True)]
    row_of = torch.cat(rows)
    at = torch.from_numpy(np.concatenate(masks))
    known = TokenBatch(
        weights=torch.from_numpy(weights).float()[row_of],
        mean_weight=1.0 / lengths.sum(),
        rows=row_of,
        fields={n: torch.from_numpy(np.concatenate(v))[at] for n, v in batch.per_token.items()},
        groups=torch.zeros(0) if batch.groups is None else torch.from_numpy(batch.groups)[row_of],
    )
    found = TokenOutputs(values=parts[0]) if objective.head == "value" else TokenOutputs(*parts)
    return objective(found, known)[0]


def _log_softmax(model: Any, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    return torch.log_softmax(model(ids[None]).logits[0] / temperature, -1)
