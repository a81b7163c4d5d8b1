"""The Preferences table: responses of one prompt with their ranks, 1 the best, ties allowed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlcore.data.chat import Message, Refused, encode_demonstrations
from rlcore.models.packing import Sequences
from rlcore.ragged import from_arrays, to_arrays
from schemas.errors import UserError
from schemas.outcomes import LEVELS

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

RANKS = {level: rank for rank, level in enumerate(LEVELS, start=1)}  # a verifier's ranking


@dataclass(frozen=True, slots=True)
class Ranked:
    """One response to ``prompt`` as text: a row of the table before tokenisation."""

    uid: str
    split: str
    data_source: str
    sample: int
    prompt: list[Message]
    response: str
    rank: int
    level: str | None = None
    verdicts: str | None = None  # of judges, as JSON


@dataclass(frozen=True)
class Preferences:
    """``table``: the Preferences contract. ``left_out``: responses that are not in it, by
    reason."""

    table: pl.DataFrame
    left_out: dict[str, int]

    @property
    def counts(self) -> dict[str, int]:
        """Prompts and responses per split, responses per level, and what was left out, by name."""
        splits = self.table.group_by("split", maintain_order=True).agg(
            prompts=pl.col("uid").n_unique(), responses=pl.len()
        )
        counts = {}
        for split, prompts, responses in splits.iter_rows():
            counts |= {f"{split}/prompts": prompts, f"{split}/responses": responses}
        levels = self.table.drop_nulls("level").group_by("level").len().sort("level")
        counts |= dict(levels.iter_rows())
        return counts | {f"left_out/{reason}": n for reason, n in self.left_out.items()}


def encode(rows: Sequence[Ranked], tokenizer: "ChatTokenizer") -> Preferences:
    """Tokenise ``rows`` by the chat template, as prompts and demonstrations are.

    Rows that the template refuses are left out and counted by reason. Raises ``UserError`` where
    ``encode_demonstrations`` does.
    """
    chats = [[*row.prompt, {"role": "assistant", "content": row.response}] for row in rows]
    encoded = encode_demonstrations(tokenizer, chats)
    left_out = Counter(tokens.reason for tokens in encoded if isinstance(tokens, Refused))
    kept = [
        (row, tokens)
        for row, tokens in zip(rows, encoded, strict=True)
        if not isinstance(tokens, Refused)
    ]
    # the last turn's tokens are the last run of the mask, EOS included
    prompt_tokens = [len(t.loss_mask) - t.loss_mask[::-1].index(False) for _, t in kept]
    table = preferences_table(
        [row for row, _ in kept], [tokens.token_ids for _, tokens in kept], prompt_tokens
    )
    return Preferences(table, dict(left_out))


def preferences_table(
    rows: Sequence[Ranked], token_ids: Sequence[list[int]], prompt_tokens: Sequence[int]
) -> pl.DataFrame:
    """Return the table of ``rows`` with the tokens given for each."""
    return pl.DataFrame(
        {
            "uid": pl.Series([row.uid for row in rows], dtype=pl.String),
            "split": pl.Series([row.split for row in rows], dtype=pl.String),
            "data_source": pl.Series([row.data_source for row in rows], dtype=pl.String),
            "sample": pl.Series([row.sample for row in rows], dtype=pl.Int32),
            "token_ids": from_arrays("token_ids", token_ids, pl.Int32),
            "prompt_tokens": pl.Series(list(prompt_tokens), dtype=pl.Int32),
            "response": pl.Series([row.response for row in rows], dtype=pl.String),
            "rank": pl.Series([row.rank for row in rows], dtype=pl.Int32),
            "level": pl.Series([row.level for row in rows], dtype=pl.String),
            "verdicts": pl.Series([row.verdicts for row in rows], dtype=pl.String),
        }
    )


def fit(preferences: Preferences, max_tokens: int) -> Preferences:
    """Leave out responses of more than ``max_tokens``, prompt included."""
    fits = pl.col("token_ids").list.len() <= max_tokens
    table = preferences.table.filter(fits)
    long = preferences.table.height - table.height
    return Preferences(table, preferences.left_out | ({"too_long": long} if long else {}))


def check_pairs(table: pl.DataFrame) -> None:
    """Raise ``UserError`` when a split has no two responses of unequal rank to one prompt."""
    for split in ("train", "validation"):
        rows = table.filter(pl.col("split") == split)
        if not comparable(rows).any():
            found = rows.group_by("level").len().sort("level").rows()
            raise UserError(
                f"reward_model.preferences give {rows.height} responses to {split} prompts and no"
                f" prompt with two of unequal rank ({dict(found)}); take more prompts, a weaker"
                " policy, or other preferences"
            )


def comparable(table: pl.DataFrame) -> pl.Series:
    """Return a mask of the rows whose prompt has responses of unequal rank."""
    return table.select(pl.col("rank").n_unique().over("uid") > 1).to_series()


def preference_sequences(table: pl.DataFrame) -> Sequences:
    """Return the rows as sequences without loss mask: a reward model is read at the last token."""
    token_ids = to_arrays(table["token_ids"])
    return Sequences(
        token_ids=token_ids,
        loss_mask=[np.zeros(len(ids), dtype=bool) for ids in token_ids],
    )
