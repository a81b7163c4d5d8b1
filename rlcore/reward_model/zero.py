"""The zero of a reward model: its bias is shifted so that demonstrations score 0 on average.

The pairwise loss does not determine the absolute level of scores, but that level matters relative
to the KL penalty and to truncated responses (InstructGPT arXiv 2203.02155 App. C.2).
"""

import os
from pathlib import Path

import numpy as np
import polars as pl

from rlcore.models.packing import Sequences
from rlcore.ragged import to_arrays
from rlcore.seeds import stream_seed
from rlcore.weights.files import read_checkpoint
from schemas.errors import UserError

WEIGHTS = "model.safetensors"
BIAS = "score.bias"


def zero_sequences(
    demonstrations: pl.DataFrame, preferences: pl.DataFrame, count: int, seed: int
) -> Sequences:
    """Return at most ``count`` training demonstrations, drawn by (seed, uid), to score 0.

    Where there are none (no SFT), the best-ranked training responses of ``preferences`` are used
    instead.
    """
    rows = demonstrations.filter(pl.col("split") == "train").select("uid", "token_ids")
    if rows.is_empty():
        train = preferences.filter(pl.col("split") == "train")
        best = pl.col("rank") == pl.col("rank").min().over("uid")
        rows = train.filter(best).select("uid", "token_ids")
    order = pl.Series("order", [stream_seed(seed, "zero", uid) for uid in rows["uid"]])
    chosen = rows.with_columns(order).sort("order", maintain_order=True).head(count)
    token_ids = to_arrays(chosen["token_ids"])
    return Sequences(
        token_ids=token_ids,
        loss_mask=[np.zeros(len(ids), dtype=bool) for ids in token_ids],
    )


def shift_bias(model_dir: Path, shift: float) -> None:
    """Add ``shift`` to the score's bias of a reward model written by ``export_hf``, atomically.

    In bfloat16 the bias keeps three digits. Raises ``UserError`` when the model has no such bias.
    """
    from safetensors.torch import save_file

    state = dict(read_checkpoint(model_dir))
    if BIAS not in state:
        raise UserError(f"{model_dir} holds no {BIAS}; give the directory of a reward model")
    state[BIAS] = (state[BIAS].double() + shift).to(state[BIAS].dtype)
    partial = model_dir / f".{WEIGHTS}"
    save_file({n: t.contiguous() for n, t in state.items()}, partial, metadata={"format": "pt"})
    os.replace(partial, model_dir / WEIGHTS)
