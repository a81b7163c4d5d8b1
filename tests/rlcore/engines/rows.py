"""Requests that end at different steps, and how far what was sampled for them is off."""

from pathlib import Path
from random import Random
from typing import Any

import torch

from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec, Generation, TurnRequest
from rlcore.models.weight_digest import canonical_names
from tests.rlcore.engines.conftest import update_of
from tests.rlcore.engines.models import CONTEXT, VOCAB


def engine_of(model: Any, folder: Path, rows: int = 64, device: str = "cpu") -> TransformersEngine:
    """Return an engine that decodes ``rows`` rows of ``model`` at once."""
    model.save_pretrained(folder / "model")
    engine = TransformersEngine(
        EngineSpec(str(folder / "model"), max_model_len=CONTEXT, max_num_seqs=rows, device=device)
    )
    state = {name: model.state_dict()[name] for name in canonical_names(model)}
    engine.load_weights(update_of(state, 1, folder / "weights.safetensors"))
    return engine


def requests_of_budgets(prompts: int, samples: int, longest: int = 100) -> list[TurnRequest]:
    """Requests of ``prompts`` prompts of different lengths, each several times, with budgets from 1
    to ``longest``; each fits the context to its last token."""
    draw, requests = Random(prompts), []
    for prompt in range(prompts):
        ids = draw.choices(range(VOCAB), k=draw.randint(1, CONTEXT - 20))
        for sample in range(samples):
            key = f"{prompt}-{sample}/0"
            requests.append(TurnRequest(key, ids, draw.getrandbits(60), draw.randint(1, longest)))
    draw.shuffle(requests)
    return requests


def furthest(
    engine: TransformersEngine, requests: list[TurnRequest], rows: list[Generation]
) -> float:
    """Return the greatest distance of a log-prob from that of a forward pass over its sequence."""
    worst = 0.0
    for request, row in zip(requests, rows, strict=True):
        whole = [*request.token_ids, *row.token_ids]
        logprobs_TV = engine.logits(whole).cpu()[len(request.token_ids) - 1 : -1].log_softmax(-1)
        expected = logprobs_TV.gather(-1, torch.tensor(row.token_ids)[:, None])[:, 0]
        worst = max(worst, (expected - torch.tensor(row.logprobs)).abs().max().item())
    return worst
