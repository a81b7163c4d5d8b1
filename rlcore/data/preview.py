"""The data of a recipe as its stages will read it, before any of them has run."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from rlcore.data.prepare import PreparedData, prepare_for
from rlcore.data.read import training_texts
from rlcore.models.base import base_tokenizer
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

BOUNDARY = "│"  # between two tokens
WIDTH = 96  # of a line of tokens or ids


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """One row. ``text``: what its tokens spell; ``pieces``: the text of each token alone."""

    uid: str
    data_source: str
    text: str
    token_ids: list[int]
    loss_mask: list[bool]
    pieces: list[str]


@dataclass(frozen=True, slots=True)
class Preview:
    """``demonstrations``: the first that SFT trains on; ``prompts``: the first that RL samples."""

    prepared: PreparedData
    demonstrations: list[PreviewRow]
    prompts: list[PreviewRow]


def preview(recipe: Recipe, count: int) -> Preview:
    """Prepare the data of ``recipe`` in memory; nothing is written into its store.

    ``count``: examples of each kind, at most. Raises ``UserError`` as base_model and prepare_data
    do.
    """
    texts = training_texts(recipe.data, recipe.seed) if recipe.model.path is None else ()
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = base_tokenizer(recipe.model, Path(scratch), texts=texts)
        prepared = prepare_for(recipe, tokenizer)
    demonstrations = _first(prepared.tables["demonstrations"], count) if recipe.sft.enabled else ()
    prompts = _first(prepared.tables["prompts"], count)
    return Preview(
        prepared,
        [example_of(row, tokenizer) for row in demonstrations],
        [example_of(row, tokenizer) for row in prompts],
    )


def _first(frame: pl.DataFrame, count: int) -> Iterator[dict[str, Any]]:
    return frame.filter(pl.col("split") == "train").head(count).iter_rows(named=True)


def example_of(row: Mapping[str, Any], tokenizer: "ChatTokenizer") -> PreviewRow:
    """Return a row of the table demonstrations or prompts; no token of a prompt carries loss."""
    ids = row["token_ids"] if "token_ids" in row else row["prompt_ids"]
    return PreviewRow(
        uid=row["uid"],
        data_source=row["data_source"],
        text=str(tokenizer.decode(ids)),
        token_ids=ids,
        loss_mask=row.get("loss_mask", [False] * len(ids)),
        pieces=[_piece(tokenizer, token) for token in ids],
    )


def _piece(tokenizer: "ChatTokenizer", token: int) -> str:
    """Return the text of a token, or the tokenizer's name of it where it is part of a character."""
    text = str(tokenizer.decode([token]))
    return (
        str(tokenizer.convert_ids_to_tokens(token)) if "\N{REPLACEMENT CHARACTER}" in text else text
    )


def example_lines(example: PreviewRow) -> Iterator[str]:
    """Yield the text of an example, then its tokens and ids: "learnt" where they carry loss, "read"
    where they do not. Control characters are escaped."""
    learnt = sum(example.loss_mask)
    yield (
        f"{example.data_source}, uid {example.uid}: {len(example.token_ids)} tokens,"
        f" {learnt} of them learnt"
    )
    yield from (f"    {_printable(line)}" for line in example.text.split("\n"))
    tokens = zip(example.loss_mask, example.pieces, example.token_ids, strict=True)
    for learns, run in groupby(tokens, key=lambda token: token[0]):
        _, pieces, ids = zip(*run, strict=True)
        label = "learnt" if learns else "read"
        yield from _wrapped(label, [_printable(piece) for piece in pieces], BOUNDARY)
        yield from _wrapped("ids", [str(token) for token in ids], " ")


def _printable(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _wrapped(label: str, parts: Sequence[str], between: str) -> Iterator[str]:
    """Yield lines of whole ``parts``, the first with ``label`` in front."""
    line = ""
    for part in parts:
        if line and len(line) + len(part) > WIDTH:
            yield f"  {label:7} {line}"
            label, line = "", ""
        line += f"{part}{between}"
    yield f"  {label:7} {line}"
