"""Prompts that are read row group by row group are those of the whole table."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from rlcore.data.rows import Row
from rlcore.data.write import prompts_table
from rlcore.rl.prompts import HELD, PromptRows
from rlcore.store import tables
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.checks import ArtifactError
from schemas.errors import UserError

GROUP, COUNT = 4, 4 * 4 * HELD + 3
SPLITS = ("validation", "train", "test")


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    rows = [
        Row(
            "f",
            n,
            SPLITS[n % 3],
            "s",
            "d",
            [{"role": "user", "content": f"{n}?"}],
            ground_truth="1",
        )
        for n in range(COUNT)
    ]
    return prompts_table([(row, [1] * (2 + (row.index * 7) % 11)) for row in rows])


@pytest.fixture
def stored(table: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tables, "ROW_GROUP_ROWS", GROUP)
    store = ArtifactStore(str(tmp_path))
    ref = store.put("dataset", "d", tables={"prompts": table}, lineage=Lineage("r", "c"))
    return store.table_file(ref, "prompts")


@pytest.fixture(params=["file", "frame"])
def rows(request: pytest.FixtureRequest, table: pl.DataFrame, stored: Path) -> PromptRows:
    return PromptRows.of_file(stored) if request.param == "file" else PromptRows.of_frame(table)


def test_rows_come_in_the_order_in_which_they_are_asked(
    table: pl.DataFrame, rows: PromptRows
) -> None:
    """Other rows, or another order, and the same seed would train another policy."""
    draw = np.random.default_rng(0)
    for split in SPLITS:
        whole, mine = table.filter(pl.col("split") == split), rows.of_split(split)
        assert mine.height == whole.height
        assert_frame_equal(mine.columns("uid", "data_source"), whole.select("uid", "data_source"))
        for count in (0, 1, 9, whole.height):
            places = draw.permutation(whole.height)[:count]
            assert_frame_equal(mine.take(places), whole[places.tolist()])
            assert_frame_equal(mine.head(count), whole.head(count))
            uids = whole["uid"][places.tolist()].to_list()
            same = whole.filter(pl.col("uid").is_in(uids))
            assert_frame_equal(mine.of_uids([*uids, "none", *uids]), same)


def test_the_shortest_prompt_is_among_the_first_or_behind_them(
    table: pl.DataFrame, rows: PromptRows
) -> None:
    whole, mine = table.filter(pl.col("split") == "train"), rows.of_split("train")
    least = whole["prompt_ids"].list.len().min()
    for count in (1, 5, COUNT):
        shown = mine.with_shortest(count)
        assert_frame_equal(shown.head(count), whole.head(count))
        assert shown["prompt_ids"].list.len().min() == least
        assert shown.height <= count + 1


def test_a_split_without_rows_is_a_table_without_rows(table: pl.DataFrame) -> None:
    rows = PromptRows.of_frame(table.filter(pl.col("split") == "train")).of_split("validation")
    assert rows.height == 0
    assert_frame_equal(rows.head(3), table.clear())
    assert_frame_equal(rows.of_uids(table["uid"].to_list()), table.clear())


def test_few_row_groups_are_in_memory(table: pl.DataFrame) -> None:
    """A table of ten million prompts must not grow into the learner's memory."""
    read = []

    def group(number: int, columns: tuple[str, ...] | None) -> pl.DataFrame:
        read.append(number)
        frame = table[number * GROUP : (number + 1) * GROUP]
        return frame if columns is None else frame.select(columns)

    rows = PromptRows([GROUP] * (COUNT // GROUP), group)
    for place in (*range(GROUP), COUNT - 5, 1):
        rows.take(np.array([place]))
    assert read == [0, (COUNT - 5) // GROUP], "a group that was just read is read again"
    rows.take(np.arange(0, COUNT - 3, GROUP))
    read.clear()
    rows.take(np.arange(0, COUNT - 3, GROUP))
    assert len(read) >= COUNT // GROUP - HELD - 1, "more groups are held than that"


def test_a_damaged_file_is_not_read(table: pl.DataFrame, tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    ref = store.put("dataset", "d", tables={"prompts": table}, lineage=Lineage("r", "c"))
    path = store.table_file(ref, "prompts")
    with pytest.raises(UserError, match=r"has no table 'promts'.*did you mean 'prompts'"):
        store.table_file(ref, "promts")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"prompts\.parquet"):
        store.table_file(ref, "prompts")
