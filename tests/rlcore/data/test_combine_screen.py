"""What repeats training or evaluation is dropped by name."""

from typing import Any

import numpy as np
import polars as pl

from rlcore.data.combine import Gathered, screen
from rlcore.data.dedup import text_hash
from rlcore.data.prepare_part import ASKED, HASHES, KEYS, SAID, Kept
from rlcore.data.rows import Row
from schemas.data import DataSection, FileSource

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
    keys = {"row": [row.index for row in rows], "split": [row.split for row in rows]}
    keys |= dict.fromkeys(("draw", "uid", "tokens"), [0] * len(rows))
    kept = Kept(pl.DataFrame(keys, schema=KEYS), pl.LazyFrame(columns))
    gathered = Gathered([("rows.jsonl", kept)])
    return screen(gathered, gathered.keys, SAID, held, data)


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
