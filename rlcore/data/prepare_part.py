"""A part of a source's rows, from raw values to columns of the tables: all that a row needs without
looking at rows of other parts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlcore.data.dedup import text_hash
from rlcore.data.filters import (
    apply_filters,
    fit_demonstrations,
    fit_prompts,
    special_token_rejects,
    unshown_rejects,
)
from rlcore.data.read import Part
from rlcore.data.rows import Row, said, shown
from rlcore.data.split import draw_of
from rlcore.data.write import demonstration_columns, prompt_columns, rejects_table
from rlcore.models.chat import Encoded, Known, Tools
from schemas.data import DataSection

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

SPLITS = ("validation", "train", "test")  # in the order of the Prompts table
# Columns beside those of the tables, where rows are compared: a row as it is shown when it is
# dropped, the text of its prompt, that of a demonstration, and the halves (uint64) of the hash of
# what duplicates share.
CONTENT, ASKED, SAID = "reject_content", "prompt_text", "demonstration_text"
HASHES = ("text_hash_0", "text_hash_1")
BESIDE = (CONTENT, ASKED, SAID, *HASHES)


@dataclass(frozen=True, slots=True)
class Work:
    """What every part is prepared with. ``folder``: where its tables are kept; None: in memory.
    ``unscored``: demonstrations without a ground truth are prompts too."""

    data: DataSection
    tools: Tools
    sft_max_tokens: int | None
    folder: Path | None = None
    unscored: bool = False

    @property
    def compares(self) -> bool:
        """Whether rows of different parts are compared, so that one may be dropped later."""
        return self.data.deduplicate != "off" or self.data.decontaminate


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows of one table, and what is compared and counted of them without their text.

    ``index``: int32, of the row in its source. ``split``: uint8, place in ``SPLITS``, as its
    source says. ``draw``: uint64, by which rows of train may end in another (``draw_of``).
    ``uid``: uint64. ``tokens``: int32.
    """

    index: np.ndarray
    split: np.ndarray
    draw: np.ndarray
    uid: np.ndarray
    tokens: np.ndarray
    columns: "PartColumns"

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, slots=True)
class PartColumns:
    """The columns of a part's table, in memory or in a file of Arrow IPC."""

    held: pl.DataFrame | Path

    def __call__(self, *names: str) -> pl.DataFrame:
        """Return those of ``names``; without any all of them."""
        if isinstance(self.held, Path):
            return pl.read_ipc(self.held, columns=list(names) or None)
        return self.held.select(names) if names else self.held


@dataclass(slots=True)
class Prepared:
    """What became of a part. ``before``: scored rows of each split before any filter."""

    source: str
    before: Counter[str]
    rejects: pl.DataFrame
    prompts: Kept
    demonstrations: Kept


def prepare_part(tokenizer: "ChatTokenizer", work: Work, part: Part) -> Prepared:
    """Return the prompts, demonstrations and rejects of ``part``. Raises ``UserError`` for a filter
    that is none, and for a long prompt where those end the run."""
    data = work.data
    rows, lost = part.normalised()
    for row in rows if work.unscored else ():
        row.scored = True
    before = Counter(row.split for row in rows if row.scored)
    rows, rejects = apply_filters(rows, data.filters)
    lost += rejects
    rows, rejects = special_token_rejects(tokenizer, rows)
    lost += rejects
    rows, rejects = unshown_rejects(tokenizer, rows)
    lost += rejects
    known: Known = {}  # a demonstration begins with the text of its prompt
    scored = [row for row in rows if row.scored]
    prompts, long = fit_prompts(tokenizer, scored, data, work.tools, known)
    # A row whose prompt cannot be used has no use as a demonstration either; nor has a test row.
    unusable = {reject.row for reject in long}
    solved = [row for row in rows if row.solution and row.split != "test"]
    solved = [row for row in solved if row.index not in unusable]
    demonstrations, refused = fit_demonstrations(
        tokenizer, solved, work.sft_max_tokens, work.tools, known
    )
    return Prepared(
        part.source,
        before,
        rejects_table([*lost, *long, *refused]),
        _kept(
            f"{part.number}-prompts",
            work,
            prompts,
            prompt_columns,
            len,
            lambda row: row.prompt_text,
        ),
        _kept(
            f"{part.number}-demonstrations",
            work,
            demonstrations,
            demonstration_columns,
            lambda encoded: len(encoded.token_ids),
            lambda row: said(row.messages),
        ),
    )


def _kept(
    name: str,
    work: Work,
    pairs: Sequence[tuple[Row, list[int] | Encoded]],
    columns: Callable[..., pl.DataFrame],
    length: Callable[..., int],
    text: Callable[[Row], str],
) -> Kept:
    rows = [row for row, _ in pairs]
    frame = columns(pairs)
    if work.data.deduplicate != "off":
        digests = b"".join(text_hash(text(row)) for row in rows)
        halves = np.frombuffer(digests, dtype=np.uint64).reshape(len(rows), 2)
        frame = frame.with_columns(pl.Series(name, halves[:, i]) for i, name in enumerate(HASHES))
    if work.compares:
        content = pl.Series([shown(row.messages) for row in rows], dtype=pl.String)
        asked = pl.Series([row.prompt_text for row in rows], dtype=pl.String)
        whole = pl.Series([text(row) for row in rows], dtype=pl.String)
        frame = frame.with_columns(content.alias(CONTENT), asked.alias(ASKED))
        frame = frame if whole.equals(asked) else frame.with_columns(whole.alias(SAID))
    path = None if work.folder is None else work.folder / f"{name}.arrow"
    if path is not None:
        frame.write_ipc(path, compression="lz4")
    return Kept(
        index=np.array([row.index for row in rows], dtype=np.int32),
        split=np.array([SPLITS.index(row.split) for row in rows], dtype=np.uint8),
        draw=np.array([draw_of(row.prompt) for row in rows], dtype=np.uint64),
        uid=np.array([int(uid, 16) for uid in frame["uid"]], dtype=np.uint64),
        tokens=np.array([length(tokens) for _, tokens in pairs], dtype=np.int32),
        columns=PartColumns(frame if path is None else path),
    )
