"""A part of a source's rows, from raw values to columns of the tables: all that a row needs without
looking at rows of other parts."""

from collections import Counter
from collections.abc import Sequence
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
from rlcore.models.chat import Tools
from schemas.data import DataSection

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

SPLIT = pl.Enum(("validation", "train", "test"))  # in the order of the Prompts table
KEYS = {"row": pl.Int32, "split": SPLIT, "draw": pl.UInt64, "uid": pl.UInt64, "tokens": pl.Int32}
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
    """Rows of one table. ``keys``: what is compared and counted of them without their text, of the
    types of ``KEYS``. ``row``: its number in its source. ``split``: as its source says. ``draw``:
    by which rows of train may end in another (``draw_of``). ``columns``: all of the table and
    ``BESIDE``, in memory or in a file of Arrow IPC."""

    keys: pl.DataFrame
    columns: pl.LazyFrame


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
    rows, filtered = apply_filters(rows, data.filters)
    rows, marked = special_token_rejects(tokenizer, rows)
    rows, unshown = unshown_rejects(tokenizer, rows)
    scored = [row for row in rows if row.scored]
    prompts, long = fit_prompts(tokenizer, scored, data, work.tools)
    # A row whose prompt cannot be used has no use as a demonstration either; nor has a test row.
    unusable = {reject.row for reject in long}
    solved = [row for row in rows if row.solution and row.split != "test"]
    solved = [row for row in solved if row.index not in unusable]
    demonstrations, refused = fit_demonstrations(tokenizer, solved, work.sft_max_tokens, work.tools)
    asked, answered = [row for row, _ in prompts], [row for row, _ in demonstrations]
    return Prepared(
        part.source,
        before,
        rejects_table([*lost, *filtered, *marked, *unshown, *long, *refused]),
        _kept(f"{part.number}-prompts", work, asked, prompt_columns(prompts)),
        _kept(
            f"{part.number}-demonstrations", work, answered, demonstration_columns(demonstrations)
        ),
    )


def _kept(name: str, work: Work, rows: Sequence[Row], frame: pl.DataFrame) -> Kept:
    """Return ``rows``, whose table is ``frame``; ``name``: of its file."""
    ids = "prompt_ids" if "prompt_ids" in frame.columns else "token_ids"
    table = frame
    if work.compares:
        texts = {CONTENT: [shown(row.messages) for row in rows]}
        texts[ASKED] = [row.prompt_text for row in rows]
        if ids == "token_ids":
            texts[SAID] = [said(row.messages) for row in rows]
        digests = b"".join(map(text_hash, texts.get(SAID, texts[ASKED])))
        halves = np.frombuffer(digests, dtype=np.uint64).reshape(len(rows), 2)
        strings = [pl.Series(name, values, pl.String) for name, values in texts.items()]
        table = frame.with_columns(*strings, **dict(zip(HASHES, halves.T, strict=True)))
    columns = table.lazy()
    if work.folder is not None:
        path = work.folder / f"{name}.arrow"
        table.write_ipc(path, compression="lz4")
        columns = pl.scan_ipc(path)
    keys = {
        "row": [row.index for row in rows],
        "split": [row.split for row in rows],
        "draw": [draw_of(row.prompt) for row in rows],
        "uid": frame["uid"].str.to_integer(base=16, dtype=pl.UInt64),
        "tokens": frame[ids].list.len(),
    }
    return Kept(pl.DataFrame(keys, schema=KEYS), columns)
