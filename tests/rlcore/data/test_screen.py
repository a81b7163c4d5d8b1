"""What repeats training or evaluation is dropped by name, and a data set that loses much stops."""

from typing import Any

import pytest

from rlcore.data.rows import Reject, Row
from rlcore.data.screen import check_rejects, screen_demonstrations, screen_prompts
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


def screened(rows: list[Row], held: dict[str, list[str]], data: DataSection) -> tuple[Any, Any]:
    kept, rejects = screen_prompts([(row, row.index) for row in rows], held, data)
    assert all(tokens == row.index for row, tokens in kept), "tokens went to another row"
    return [row.index for row, _ in kept], [(reject.row, reject.reason) for reject in rejects]


def test_of_equal_rows_validation_keeps_its_own() -> None:
    """Dropped from validation instead, the row would be trained on."""
    rows = [row("a b", 0), row("a  b", 1, "validation"), row("c", 2)]
    assert screened(rows, {}, section()) == ([1, 2], [(0, "duplicate")])


def test_test_rows_stay_as_they_are_and_come_last() -> None:
    """Their number is what published figures refer to."""
    rows = [row("a", 0, "test"), row("a", 1, "test"), row("a", 2), row("a", 3)]
    assert screened(rows, {}, section()) == ([2, 0, 1], [(3, "duplicate")])


def test_repeated_rows_stay_where_the_recipe_wants_them() -> None:
    rows = [row("a", 0), row("a", 1)]
    assert screened(rows, {}, section(deduplicate="off")) == ([0, 1], [])


def test_a_reject_names_the_row_that_it_repeats() -> None:
    _, rejects = screen_prompts([(row("a", 0), 0), (row("a", 5), 0)], {}, section())
    assert [(r.row, r.detail) for r in rejects] == [(5, "equals rows.jsonl row 0")]


def test_near_duplicates_are_searched_among_the_rows_that_are_left() -> None:
    """Positions count over what exact duplicates left: off by one drops another row."""
    other = LEAKED.replace("forty", "fifty")
    rows = [row("x y z", 0), row("x y z", 1), row(LEAKED, 2), row(other, 3)]
    found = screened(rows, {}, section(deduplicate="near", near_duplicate_jaccard=0.3))
    assert found == ([0, 2], [(1, "duplicate"), (3, "near_duplicate")])


def test_what_evaluation_holds_is_not_trained_on() -> None:
    rows = [row(LEAKED, 0), row("What is 1 + 1?", 1), row(LEAKED, 2, "validation")]
    assert screened(rows, {"test": [f"{LEAKED}. How many?"]}, section()) == (
        [1],
        [(2, "contaminated"), (0, "duplicate")],
    )
    assert screened(rows[1:], {"validation": [LEAKED]}, section()) == ([2, 1], [])


def test_decontamination_can_be_switched_off() -> None:
    data = section(decontaminate=False)
    assert screened([row(LEAKED, 0)], {"test": [LEAKED]}, data) == ([0], [])


def test_another_solution_of_one_question_is_no_repetition() -> None:
    rows = [(row("q", i, answer=a), None) for i, a in enumerate(["#### 1", "so #### 1", "#### 1"])]
    kept, rejects = screen_demonstrations(rows, {}, section())
    assert [row.index for row, _ in kept] == [0, 1]
    assert [(r.row, r.detail) for r in rejects] == [(2, "demonstration: equals rows.jsonl row 0")]


def test_a_demonstration_whose_question_is_held_out_is_dropped() -> None:
    kept, rejects = screen_demonstrations(
        [(row(LEAKED, 0, answer="#### 280"), None)], {"test": [LEAKED]}, section()
    )
    assert kept == []
    assert rejects[0].detail.startswith(
        "demonstration: shares its words with the test prompt: In a"
    )


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


def test_one_bad_source_is_not_hidden_by_a_large_good_one() -> None:
    with pytest.raises(UserError, match=r"^rows\.jsonl: 1 of 2 rows rejected"):
        check_rejects([reject(0, "odd")], {"big.jsonl": 1000, "rows.jsonl": 2}, section())
