"""A rejected row can be found again and read, and a source that loses many stops."""

import json
from typing import Any

import pytest

from rlcore.data.rows import CONTENT_CHARS, Reject, Row, check_rejects, shown
from schemas.data import DataSection, FileSource
from schemas.errors import UserError


def row(prompt: str, answer: str = "") -> Row:
    solution = [{"role": "assistant", "content": answer}] if answer else []
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": prompt}]
    return Row("f.jsonl", 7, "train", "train", "sums", messages, solution)


def test_a_reject_names_file_and_row_and_shows_the_whole_conversation() -> None:
    reject = row("naïve?", "ja").reject("filter", "why")
    assert (reject.source, reject.row, reject.reason, reject.detail) == (
        "f.jsonl",
        7,
        "filter",
        "why",
    )
    assert [message["content"] for message in json.loads(reject.content)] == ["s", "naïve?", "ja"]
    assert "naïve" in reject.content, "escaped text cannot be searched for"


def test_a_long_row_is_cut_and_an_odd_value_is_shown_all_the_same() -> None:
    assert len(shown("x" * 10_000)) == CONTENT_CHARS
    assert shown({"when": {1}}) == '{"when": "{1}"}'


def test_the_text_of_a_prompt_is_without_its_solution() -> None:
    """The answer in the text that decontamination compares would hide a leaked question."""
    assert row("q", "a").prompt_text == "s\nq"


def section(**fields: Any) -> DataSection:
    return DataSection.model_validate({"sources": (FileSource(path="rows.jsonl"),)} | fields)


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
