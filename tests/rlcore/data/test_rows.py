"""A rejected row can be found again and read."""

import json

from rlcore.data.rows import CONTENT_CHARS, Row, shown


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
