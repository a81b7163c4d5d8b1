"""Conversations with tools become the turns that a policy takes and those that answer it."""

import json
from typing import Any

import pytest

from rlcore.data.conversation import message_of, policys_part
from rlcore.data.filters import fit_demonstrations, fit_prompts
from rlcore.data.normalise import normalise
from rlcore.data.rows import BadRow, RawTable, Row
from rlcore.envs.tools import ToolCall, written
from rlcore.models.tokenizer import train_tokenizer
from schemas.data import DataSection

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is 2 * 3?"}
CALL = {"role": "assistant", "content": written(ToolCall("multiply", {"a": 2, "b": 3}))}
RESULT = {"role": "tool", "content": "6"}
ANSWER = {"role": "assistant", "content": "#### 6"}
TOOL = {
    "type": "function",
    "function": {"name": "multiply", "description": "", "parameters": {"type": "object"}},
}


def rows(*values: dict[str, Any]) -> list[Row]:
    good, rejects = normalise(RawTable("rows.jsonl", "train", list(values)))
    assert not rejects
    return good


@pytest.mark.parametrize(
    ("chat", "cut"),
    [
        ([USER, CALL, RESULT, ANSWER], 1),
        ([SYSTEM, USER, ANSWER, USER, CALL, RESULT, ANSWER], 4),
        ([SYSTEM, USER, CALL, RESULT, ANSWER, USER, ANSWER], 6),
        ([USER, ANSWER, USER], 3),
        ([USER, CALL, RESULT], 1),
        ([{"role": "environment", "content": "Room 1."}, ANSWER], 1),
    ],
)
def test_a_prompt_holds_no_answer_that_the_policy_did_not_ask_for(
    chat: list[dict[str, str]], cut: int
) -> None:
    """A prompt that ends in a tool's answer gives away half of the solution."""
    assert policys_part(chat) == cut
    (row,) = rows({"messages": chat, "ground_truth": "6"})
    assert (row.prompt, row.solution) == (chat[:cut], chat[cut:])
    assert row.scored


def test_tool_calls_of_trl_are_text_and_tools_are_the_rows_own() -> None:
    arguments = {"a": 2, "b": 3}
    for given in (arguments, json.dumps(arguments)):
        calls = [{"type": "function", "function": {"name": "multiply", "arguments": given}}]
        asked = {"role": "assistant", "content": None, "tool_calls": calls}
        for tools in ([TOOL], json.dumps([TOOL])):
            (row,) = rows({"messages": [USER, asked, RESULT, ANSWER], "tools": tools})
            assert row.messages == [USER, CALL, RESULT, ANSWER]
            assert row.tools == [TOOL]
            assert row.extra_info == "{}"


@pytest.mark.parametrize("padded", [True, False])
def test_only_what_parquet_pads_is_removed(padded: bool) -> None:
    """A null of JSON is a value: a schema lost its default, a call its argument."""
    parameters = {"type": "object", "properties": {"b": {"type": "number", "default": None}}}
    tool = {"type": "function", "function": {"name": "multiply", "parameters": parameters}}
    arguments = {"a": 2, "b": None}
    whole = written(ToolCall("multiply", arguments))

    def read(tools: Any, given: Any) -> Row:
        calls = [{"function": {"name": "multiply", "arguments": given}}]
        asked = {"role": "assistant", "tool_calls": calls}
        values = {"messages": [USER, asked, RESULT, ANSWER], "tools": tools}
        ((row,), rejects) = normalise(RawTable("rows", "train", [values], padded=padded))
        assert not rejects
        return row

    row = read(json.dumps([tool]), json.dumps(arguments))
    assert row.tools == [tool], "JSON text has no padding"
    assert row.solution[0]["content"] == whole
    row = read([tool], arguments)
    assert (row.tools == [tool]) is not padded
    short = written(ToolCall("multiply", {"a": 2}))
    assert row.solution[0]["content"] == (short if padded else whole)


def test_two_calls_in_a_turn_are_read_in_their_order() -> None:
    calls = [
        {"function": {"name": "multiply", "arguments": {"a": 2, "b": 3}}},
        {"id": "2", "type": "function", "function": {"name": "now", "arguments": ""}},
    ]
    asked = {"role": "assistant", "content": "Both.", "tool_calls": calls}
    (row,) = rows({"messages": [USER, asked, RESULT, {**RESULT, "content": "7"}, ANSWER]})
    assert row.solution[0]["content"] == f"Both.\n{CALL['content']}\n{written(ToolCall('now', {}))}"
    assert [turn["content"] for turn in row.solution[1:]] == ["6", "7", "#### 6"]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"role": "user", "content": [{"type": "text", "text": USER["content"]}]}, USER),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "What is "}, {"type": None, "text": "2 * 3?"}],
            },
            USER,
        ),
        ({"role": "user", "content": {"type": "input_text", "text": USER["content"]}}, USER),
        ({"from": "human", "value": USER["content"]}, USER),
        ({"role": "developer", "content": "Be brief."}, SYSTEM),
        ({"role": "function", "name": "multiply", "content": "6"}, RESULT),
        ({"role": "tool", "content": None}, {"role": "tool", "content": ""}),
        ({"role": "assistant", "content": "#### 6", "refusal": None, "weight": 1}, ANSWER),
        ({"from": "gpt", "value": "#### 6", "weight": None}, ANSWER),
        ({"from": "observation", "value": "6"}, RESULT),
        (
            {
                "from": "function_call",
                "value": '{"name": "multiply", "arguments": {"a": 2, "b": 3}}',
            },
            CALL,
        ),
        (
            {
                "role": "assistant",
                "function_call": {"name": "multiply", "arguments": '{"a":2,"b":3}'},
            },
            CALL,
        ),
        (
            {"role": "assistant", "content": "#### 6", "reasoning": "Easy."},
            {**ANSWER, "reasoning_content": "Easy."},
        ),
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Easy."},
                    {"type": "text", "text": "#### 6"},
                ],
            },
            {**ANSWER, "reasoning_content": "Easy."},
        ),
    ],
)
def test_a_message_of_any_api_is_read(given: dict[str, Any], read: dict[str, str]) -> None:
    assert message_of(given, "messages") == read


@pytest.mark.parametrize(
    ("given", "reason", "detail"),
    [
        ({"role": "user", "content": [{"type": "image_url"}]}, "content_part", "'image_url'"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "content_part", "without"),
        ({"role": "user", "content": ["x"]}, "wrong_type", "parts of text"),
        ({"role": "user", "content": 3}, "wrong_type", "parts of text"),
        ({"role": "assistant", "content": "", "refusal": "No."}, "content_part", "has refusal"),
        ({**ANSWER, "weight": 0}, "untrained_turn", "has weight 0"),
        ({**ANSWER, "reasoning": "a", "thinking": "b"}, "reasoning", "that differ"),
        ({**ANSWER, "reasoning": ["a"]}, "wrong_type", "reasoning of a message"),
        ({**USER, "thinking": "a"}, "roles", "has reasoning, as only the assistant may"),
        ({**ANSWER, "tool_calls": "[{"}, "tool_calls", "no JSON text"),
        ({**ANSWER, "tool_calls": [{"name": "f", "arguments": "x"}]}, "tool_calls", "other than"),
        ({"speaker": "user", "text": "Hi"}, "wrong_type", "other than {role, content}"),
    ],
)
def test_what_a_message_means_and_is_not_read_is_refused(
    given: dict[str, Any], reason: str, detail: str
) -> None:
    """Left out, it would be trained as if it had not been there."""
    with pytest.raises(BadRow) as bad:
        message_of(given, "messages")
    assert bad.value.reason == reason
    assert detail in bad.value.detail


def test_a_row_shows_its_own_tools_and_learns_assistant_turns_only() -> None:
    """Trained on a tool's answers, a model makes them up; without the tools it guesses names."""
    tokenizer: Any = train_tokenizer([CALL["content"], ANSWER["content"]] * 10, 300)
    tokenizer.chat_template = (
        "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
        "{% for message in messages %}{{ message.role }}:{{ message.content }}"
        "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    other = {"type": "function", "function": {"name": "divide", "parameters": {}}}
    chat = [USER, CALL, {**RESULT, "content": ""}, ANSWER]
    both = rows(
        {"messages": chat, "tools": [TOOL], "ground_truth": "6"},
        {"messages": chat, "ground_truth": "6"},
        {"messages": chat, "tools": [TOOL], "ground_truth": "7"},
    )
    encoded, rejects = fit_demonstrations(tokenizer, both, 400, [other])
    assert not rejects
    assert [row for row, _ in encoded] == both
    texts = [tokenizer.decode(tokens.token_ids) for _, tokens in encoded]
    assert [text[: text.index("]") + 1] for text in texts] == [
        "[multiply]",
        "[divide]",
        "[multiply]",
    ]
    tokens = encoded[0][1]
    learnt = [t for t, is_loss in zip(tokens.token_ids, tokens.loss_mask, strict=True) if is_loss]
    eos = tokenizer.eos_token
    assert tokenizer.decode(learnt) == f"{CALL['content']}{eos}{ANSWER['content']}{eos}"
    data = DataSection.model_validate({"sources": [{"kind": "gsm8k"}], "max_prompt_tokens": 200})
    prompts, _ = fit_prompts(tokenizer, both, data, [other])
    heads = [tokenizer.decode(ids)[:9] for _, ids in prompts]
    assert [head.startswith("[multiply") for head in heads] == [True, False, True]
