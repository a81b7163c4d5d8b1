"""What repeats training or evaluation is dropped by name, and a data set that loses much stops."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from rlcore.data.combine import Gathered
from rlcore.data.dedup import text_hash
from rlcore.data.prepare_part import ASKED, HASHES, SAID, SPLITS, Kept, PartColumns
from rlcore.data.rows import Reject, Row
from rlcore.data.screen import check_rejects, screen
from schemas.data import DataSection, FileSource
from schemas.errors import UserError

LEAKED = "In a far away harbour seven red ships carry forty crates of tea each day"


def section(**fields: Any) -> DataSection:
    sources = (FileSource(path="rows.jsonl"),)
    return DataSection.model_validate({"sources": sources, "deduplicate": "exact"} | fields)


def row(text: str, index: int = 0, split: str = "train", answer: str = "") -> Row:
    solution = [{"role": "assistant", "content": answer}] if answer else []
    prompt = [{"role": "user", "content": text}]
    return Row("rows.jsonl", index, split, split, "sums", prompt, solution)


def screened(
    rows: list[Row], held: dict[str, list[str]], data: DataSection
) -> dict[int, tuple[str, str]]:
    """Of the rows that are dropped, by position, reason and detail."""
    texts = ["\n".join(message["content"] for message in row.messages) for row in rows]
    hashes = np.frombuffer(b"".join(map(text_hash, texts)), dtype=np.uint64).reshape(-1, 2)
    columns = {ASKED: [row.prompt_text for row in rows], SAID: texts}
    columns |= {name: hashes[:, i] for i, name in enumerate(HASHES)}
    none = np.zeros(len(rows), dtype=np.int32)
    index = np.array([row.index for row in rows], dtype=np.int32)
    split = np.array([SPLITS.index(row.split) for row in rows], dtype=np.uint8)
    kept = Kept(index, split, none, none, none, PartColumns(pl.DataFrame(columns)))
    gathered = Gathered([("rows.jsonl", kept)])
    return screen(gathered, np.arange(len(rows)), pl.col(SAID), held, data)


def reasons(
    rows: list[Row], held: dict[str, list[str]], data: DataSection
) -> list[tuple[int, str]]:
    return [(i, reason) for i, (reason, _) in screened(rows, held, data).items()]


def test_of_equal_rows_the_first_is_kept() -> None:
    rows = [row("a b", 1, "validation"), row("a  b", 0), row("c", 2)]
    assert reasons(rows, {}, section()) == [(1, "duplicate")]


def test_repeated_rows_stay_where_the_recipe_wants_them() -> None:
    assert screened([row("a", 0), row("a", 1)], {}, section(deduplicate="off")) == {}


def test_a_reject_names_the_row_that_it_repeats() -> None:
    assert screened([row("a", 0), row("a", 5)], {}, section()) == {
        1: ("duplicate", "equals rows.jsonl row 0")
    }


def test_near_duplicates_are_searched_among_the_rows_that_are_left() -> None:
    """Positions count over what exact duplicates left: off by one drops another row."""
    other = LEAKED.replace("forty", "fifty")
    rows = [row("x y z", 0), row("x y z", 1), row(LEAKED, 2), row(other, 3)]
    found = screened(rows, {}, section(deduplicate="near", near_duplicate_jaccard=0.3))
    assert [(i, reason) for i, (reason, _) in found.items()] == [
        (1, "duplicate"),
        (3, "near_duplicate"),
    ]
    assert found[3][1].endswith("rows.jsonl row 2")


def test_what_evaluation_holds_is_not_trained_on() -> None:
    rows = [row(LEAKED, 2, "validation"), row(LEAKED, 0), row("What is 1 + 1?", 1)]
    assert reasons(rows, {"test": [f"{LEAKED}. How many?"]}, section()) == [
        (0, "contaminated"),
        (1, "duplicate"),
    ]
    assert reasons([rows[0], rows[2]], {"validation": [LEAKED]}, section()) == []
    assert reasons(rows[1:], {"validation": [LEAKED]}, section()) == [(0, "contaminated")]


def test_decontamination_can_be_switched_off() -> None:
    assert screened([row(LEAKED, 0)], {"test": [LEAKED]}, section(decontaminate=False)) == {}


def test_another_solution_of_one_question_is_no_repetition() -> None:
    rows = [row("q", i, answer=a) for i, a in enumerate(["#### 1", "so #### 1", "#### 1"])]
    assert screened(rows, {}, section()) == {2: ("duplicate", "equals rows.jsonl row 0")}


def test_a_demonstration_whose_question_is_held_out_is_dropped() -> None:
    found = screened([row(LEAKED, 0, answer="#### 280")], {"test": [LEAKED]}, section())
    assert found[0][1].startswith("shares its words with the test prompt: In a")


def reject(index: int, reason: str = "filter") -> Reject:
    return Reject("rows.jsonl", index, reason, f"detail {index}", "")


def test_a_loss_up_to_the_bound_is_accepted() -> None:
    check_rejects([reject(0)], {"rows.jsonl": 10, "other.jsonl": 1}, section())
    check_rejects([], {"rows.jsonl": 0}, section(max_reject_fraction=0.0))


def test_a_loss_above_the_bound_names_its_main_reason_and_remedy() -> None:
    rejects = [reject(0), reject(3, "over_length"), reject(4, "over_length")]
    with pytest.raises(UserError) as error:
        check_rejects(rejects, {"rows.jsonl": 10}, section())
    assert str(error.value) == (
        "rows.jsonl: 3 of 10 rows rejected, over data.max_reject_fraction = 0.1; 2 for"
        " 'over_length', as row 3: detail 3; raise data.max_prompt_tokens or set data.over_length"
        " to a truncation, or raise data.max_reject_fraction"
    )


def test_a_row_rejected_as_prompt_and_as_demonstration_is_one_row() -> None:
    rejects = [reject(0), reject(0, "over_length_demonstration")]
    check_rejects(rejects, {"rows.jsonl": 10}, section())


def test_a_reason_is_counted_by_rows_not_by_rejects() -> None:
    """Each row is dropped as a prompt and as a demonstration: "198 for 'duplicate'" of 100 rows."""
    rejects = [reject(i, "duplicate") for i in range(1, 100) for _ in range(2)]
    rejects += [reject(0, "wrong_type")]
    with pytest.raises(UserError, match=r"100 of 100 rows rejected, .*; 99 for 'duplicate', as"):
        check_rejects(rejects, {"rows.jsonl": 100}, section())


def test_one_bad_source_is_not_hidden_by_a_large_good_one() -> None:
    with pytest.raises(UserError, match=r"^rows\.jsonl: 1 of 2 rows rejected"):
        check_rejects([reject(0, "odd")], {"big.jsonl": 1000, "rows.jsonl": 2}, section())
