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
class Preview:
    """Rows of the prepared tables: ``demonstrations``, the first that SFT trains on, and
    ``prompts``, the first that RL samples."""

    prepared: PreparedData
    tokenizer: "ChatTokenizer"
    demonstrations: list[dict[str, Any]]
    prompts: list[dict[str, Any]]


def preview(recipe: Recipe, count: int) -> Preview:
    """Prepare the data of ``recipe`` in memory; nothing is written into its store.

    ``count``: examples of each kind, at most. Raises ``UserError`` as base_model and prepare_data
    do.
    """
    given = recipe.data, recipe.seed, recipe.environment
    texts = training_texts(*given) if recipe.model.path is None else ()
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = base_tokenizer(recipe.model, Path(scratch), texts=texts)
        prepared = prepare_for(recipe, tokenizer)
    taught, asked = (
        prepared.tables[name].filter(pl.col("split") == "train").head(count).to_dicts()
        for name in ("demonstrations", "prompts")
    )
    return Preview(prepared, tokenizer, taught if recipe.sft.enabled else [], asked)


def example_lines(row: Mapping[str, Any], tokenizer: "ChatTokenizer") -> Iterator[str]:
    """Yield the text of a row of the table demonstrations or prompts, then its tokens and ids:
    "learnt" where they carry loss, "read" where they do not, as all of a prompt. Control characters
    are escaped."""
    ids = row["token_ids"] if "token_ids" in row else row["prompt_ids"]
    mask = row.get("loss_mask", [False] * len(ids))
    yield (f"{row['data_source']}, uid {row['uid']}: {len(ids)} tokens, {sum(mask)} of them learnt")
    yield from (f"    {_printable(line)}" for line in str(tokenizer.decode(ids)).split("\n"))
    for learns, run in groupby(zip(mask, ids, strict=True), key=lambda token: token[0]):
        own = [token for _, token in run]
        pieces = [_printable(_piece(tokenizer, token)) for token in own]
        yield from _wrapped("learnt" if learns else "read", pieces, BOUNDARY)
        yield from _wrapped("ids", list(map(str, own)), " ")


def _piece(tokenizer: "ChatTokenizer", token: int) -> str:
    """Return the text of a token, or the tokenizer's name of it where it is part of a character."""
    text = str(tokenizer.decode([token]))
    is_part = "\N{REPLACEMENT CHARACTER}" in text
    return str(tokenizer.convert_ids_to_tokens(token)) if is_part else text


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
