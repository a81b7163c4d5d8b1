"""Conversations that CSV or pandas wrote as text are conversations again, or are refused."""

import json
from typing import Any

import numpy as np
import pytest

from rlcore.data.normalise import normalise
from rlcore.data.rows import RawTable
from rlcore.data.values import is_conversation, value_in

USER = {"role": "user", "content": 'What is 2 + 3?\nIt\'s ["easy"] } {.'}
SYSTEM = {"role": "system", "content": "Be brief, and write neither } nor {."}
CHATS = ([USER], [SYSTEM, USER])


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize(
    "write",
    [
        json.dumps,
        lambda chat: json.dumps(chat, indent=2),
        lambda chat: json.dumps(json.dumps(chat)),
        str,
        lambda chat: f" {chat!r}\n",
        lambda chat: str(np.array(chat, dtype=object)),  # pandas, of a verl Parquet file
        lambda chat: str([{"content": m["content"], "role": m["role"]} for m in chat]),
    ],
)
def test_messages_written_as_text_are_read(chat: list[dict[str, str]], write: Any) -> None:
    text = write(chat)
    assert is_conversation(text)
    assert value_in(text) == chat
    for values in ({"prompt": text}, {"messages": text}, {"prompt": "?", "completion": text}):
        rows, rejects = normalise(RawTable("rows.csv", "train", [{**values, "ground_truth": "5"}]))
        if "completion" in values:
            assert [reject.reason for reject in rejects] == ["roles"], "they are no answer"
        else:
            assert [row.prompt for row in rows] == [chat]


def test_a_file_of_verl_is_read_after_a_csv() -> None:
    row = {
        "data_source": "sums",
        "prompt": "[{'content': 'What is 2 + 3?', 'role': 'user'}]",
        "reward_model": "{'ground_truth': '5', 'style': 'rule'}",
        "extra_info": '{"index": 7}',
    }
    ((read,), rejects) = normalise(RawTable("rows.csv", "train", [row]))
    assert not rejects
    assert (read.ground_truth, read.extra_info) == ("5", '{"index": 7}')
    assert read.prompt == [{"role": "user", "content": "What is 2 + 3?"}]


@pytest.mark.parametrize(
    "text",
    [
        "[{'role': 'user', 'content': 'What is 2 +",  # a spreadsheet's limit
        "[{'role': 'user', 'content': array(['x'], dtype=object)}]",
        '[{"role": "user", "content": "Hi"}] and then?',
        "[{'role': 'user', 'content': 'a'} {'role': 'b'}]",
    ],
)
def test_what_cannot_be_read_back_is_refused(text: str) -> None:
    """It was trained on with its brackets."""
    rows, (reject,) = normalise(RawTable("rows.csv", "train", [{"prompt": text, "solution": "5"}]))
    assert not rows
    assert reject.reason == "conversation_as_text"
    assert "prompt begins as a list of messages" in reject.detail


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2] + [3]?",
        '{"value": 3} as XML?',
        "Write JSON such as [{'role': 'user', 'content': 'Hi'}].",
        '[{"city": "Rome", "content": "x"}]',
        "{x | x > 0}",
    ],
)
def test_other_text_with_brackets_stays_text(text: str) -> None:
    assert not is_conversation(text)
    ((row,), _) = normalise(RawTable("rows", "train", [{"prompt": text, "solution": "5"}]))
    assert row.prompt == [{"role": "user", "content": text}]
