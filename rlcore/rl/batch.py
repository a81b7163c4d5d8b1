"""From tables to what the learner takes: whole sequences, response columns aligned behind the
prompt."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from rlcore.models.packing import Sequences
from rlcore.ragged import to_arrays


def sequences_of(
    rollouts: pl.DataFrame, per_token: Mapping[str, list[np.ndarray]] | None = None
) -> Sequences:
    """Return prompt + response of every rollout; ``per_token`` holds arrays over response tokens.

    Loss mask and per-token arrays are 0 on the prompt. Rows keep their order.
    """
    prompts = to_arrays(rollouts["prompt_ids"])
    responses = to_arrays(rollouts["token_ids"])
    masks = to_arrays(rollouts["loss_mask"])
    lengths = [len(prompt) for prompt in prompts]
    return Sequences(
        token_ids=[np.concatenate(pair) for pair in zip(prompts, responses, strict=True)],
        prompt_lengths=np.array(lengths, dtype=np.int64),
        loss_mask=[behind(n, mask, bool) for n, mask in zip(lengths, masks, strict=True)],
        per_token={
            name: [behind(n, a, np.float32) for n, a in zip(lengths, arrays, strict=True)]
            for name, arrays in (per_token or {}).items()
        },
    )


def behind(prompt_length: int, response: np.ndarray, dtype: type) -> np.ndarray:
    """Return ``response`` preceded by ``prompt_length`` zeros."""
    return np.concatenate([np.zeros(prompt_length, dtype=dtype), response.astype(dtype)])


def response_part(rollouts: pl.DataFrame, whole: list[np.ndarray]) -> list[np.ndarray]:
    """Return the response part of arrays over whole sequences."""
    lengths = rollouts["prompt_ids"].list.len()
    return [array[length:] for array, length in zip(whole, lengths, strict=True)]
