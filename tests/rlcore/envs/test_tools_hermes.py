import pytest

from rlcore.envs.tools import Malformed, ToolCall, call_in, written

CALL = ToolCall("add", {"a": 1, "b": "zwei ü"})


def test_a_written_call_is_read_again() -> None:
    assert call_in(f"Let me see. {written(CALL)}\n") == CALL


@pytest.mark.parametrize("text", ["", "#### 5", "tool_call", "<tool>"])
def test_text_without_a_tag_is_no_call(text: str) -> None:
    assert call_in(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "</tool_call>",
        "</tool_call><tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        written(CALL) * 2,
        written(CALL) + " #### 5",  # an answer to a result that is not there yet
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
    ],
)
def test_what_is_no_call_and_wants_to_be_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        call_in(text)
