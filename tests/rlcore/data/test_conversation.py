"""Conversations with tools become the turns that a policy takes and those that answer it."""

import json
from typing import Any

import pytest

from rlcore.data.conversation import policys_part
from rlcore.data.filters import fit_demonstrations, fit_prompts
from rlcore.data.normalise import normalise
from rlcore.data.rows import RawTable, Row
from rlcore.envs.hermes import ToolCall, written
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
    for given in (arguments, json.dumps(arguments), {**arguments, "unit": None}):
        calls = [{"type": "function", "function": {"name": "multiply", "arguments": given}}]
        asked = {"role": "assistant", "content": None, "tool_calls": calls}
        for tools in ([{**TOOL, "strict": None}], json.dumps([TOOL])):
            (row,) = rows({"messages": [USER, asked, RESULT, ANSWER], "tools": tools})
            assert row.messages == [USER, CALL, RESULT, ANSWER]
            assert row.tools == [TOOL]
            assert row.extra_info == "{}"


def test_a_turn_of_two_calls_is_rejected() -> None:
    call = {"function": {"name": "multiply", "arguments": {}}}
    asked = {"role": "assistant", "content": "", "tool_calls": [call, call]}
    _, (reject,) = normalise(RawTable("r", "train", [{"messages": [USER, asked, RESULT, ANSWER]}]))
    assert (reject.reason, reject.detail[-6:]) == ("tool_calls", " not 2")


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
