"""What PPO-ptx mixes into each policy step: pretraining text, or the demonstrations."""

from typing import Any

import numpy as np
import polars as pl

from rlcore.data.rows import shown
from rlcore.data.sources import read_file
from rlcore.models.packing import Sequences
from rlcore.models.tokenizer import eos_token_id
from rlcore.store.inputs import Read, read_file_digest
from rlcore.store.reader import ArtifactReader
from rlcore.supervised.sft import demonstration_sequences
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.rl import Ptx

SETTING = "rl.ptx.path"


def ptx_digests(ptx: Ptx | None) -> dict[str, Read]:
    """Return the sha256 of the text file, by role, where there is one: part of the cache key."""
    return {} if ptx is None or ptx.path is None else {SETTING: read_file_digest(ptx.path, SETTING)}


def ptx_texts(path: str, limit: int | None = None) -> list[str]:
    """Return the texts of the first ``limit`` rows of ``rl.ptx.path``, None = all.

    Raises ``UserError`` when the file cannot be read, has no rows, or one of them has no text.
    """
    rows = read_file(path, limit, setting=SETTING)
    if not rows:
        raise UserError(f"{SETTING} = '{path}' holds no rows; give rows with text")
    for number, row in enumerate(rows):
        if not isinstance(row.get("text"), str):
            raise UserError(
                f"{SETTING} = '{path}' row {number} has no text: {shown(row)[:80]}; give a Parquet"
                " or JSONL file with a text in the column text"
            )
    texts = [row["text"] for row in rows]
    for number, text in enumerate(texts):
        if text != text.encode(errors="replace").decode():
            raise UserError(
                f"{SETTING} = '{path}' row {number} holds half of a character (such as \\ud83d);"
                " remove the row"
            )
    return texts


def ptx_of(
    ptx: Ptx | None, store: ArtifactReader, dataset: ArtifactRef, tokenizer: Any
) -> Sequences | None:
    """Return the sequences to draw from, None without the section: each text of ``ptx.path``, or
    the training demonstrations of ``dataset``.

    A text is cut at ``ptx.max_tokens``, ends with EOS where it is whole, and every token but its
    first is predicted. Raises ``UserError`` when the file holds no text, or a row is without one.
    """
    if ptx is None:
        return None
    if ptx.path is None:
        demonstrations = store.table(dataset, "demonstrations")
        return demonstration_sequences(demonstrations.filter(pl.col("split") == "train"))
    encoded = tokenizer(ptx_texts(ptx.path), add_special_tokens=False)["input_ids"]
    token_ids = [
        np.array([*ids, eos_token_id(tokenizer)][: ptx.max_tokens], dtype=np.int32)
        for ids in encoded
        if ids
    ]
    if not token_ids:
        raise UserError(f"{SETTING} = '{ptx.path}' holds no text; give rows with text")
    return Sequences(
        token_ids=token_ids,
        loss_mask=[np.arange(len(ids)) > 0 for ids in token_ids],
    )
