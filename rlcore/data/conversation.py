"""Conversations with tools: messages, tool calls as text, where the policy's part begins.

As TRL has them (docs/source/dataset_formats.md, "Tool calling"): ``messages`` with the roles
``tool`` or ``environment`` between assistant turns, ``tool_calls`` on assistant messages, and a
column ``tools`` of JSON schemas, as a list or as JSON text.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rlcore.data.chat import Message
from rlcore.data.rows import BadRow
from rlcore.envs.hermes import ToolCall, written

ANSWERS = ("tool", "environment")  # roles of what answers the policy between its turns
_ROLES = ("user", "assistant", *ANSWERS)


def policys_part(chat: Sequence[Mapping[str, str]]) -> int:
    """Return the index of the first assistant turn after the last user turn, the chat's length
    where there is none.

    The prompt ends there: an answer of a tool behind it belongs to a call that a policy may not
    make.
    """
    asked = max((i for i, message in enumerate(chat) if message["role"] == "user"), default=-1)
    spoken = (i for i, m in enumerate(chat) if i > asked and m["role"] == "assistant")
    return next(spoken, len(chat))


def check_roles(prompt: Sequence[Message], solution: Sequence[Message]) -> None:
    """Raise BadRow unless the messages are turns that a policy could have taken."""
    roles = [message["role"] for message in (*prompt, *solution)]
    turns = roles[1:] if roles[0] == "system" else roles
    if unknown := [role for role in turns if role not in _ROLES]:
        why = f"{unknown[0]!r} is not one of {', '.join(_ROLES)} after the system's"
    elif not turns or turns[0] in ("assistant", "tool"):
        why = "the first after the system's must be of the user or the environment"
    elif ("assistant", "assistant") in pairwise(turns):
        why = "two turns of the assistant follow one another"
    elif prompt[-1]["role"] in ("assistant", "system"):
        why = "the prompt must end with a turn that the assistant answers"
    elif solution and solution[0]["role"] != "assistant":
        why = "the completion must begin with a turn of the assistant"
    else:
        return
    raise BadRow("roles", f"roles {', '.join(roles)}: {why}")


def message_of(value: Any, column: str) -> Message:
    """Return a message with its tool call, if any, as text. Raises BadRow."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise _no_message(column)
    content, calls = value.get("content"), value.get("tool_calls")
    if calls and value["role"] == "assistant":
        content = "\n".join(part for part in (content, _call(calls)) if part)
    if not isinstance(content, str):
        raise _no_message(column)
    return {"role": value["role"], "content": content}


def tools_of(value: Any) -> list[dict[str, Any]]:
    """Return a row's own tools: JSON schemas, given as a list or as JSON text; [] for none.

    Raises BadRow.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except ValueError as error:
            raise BadRow("wrong_type", f"tools is no JSON text: {error}") from None
    tools = _without_nulls([] if value is None else value)
    if not isinstance(tools, list) or not all(isinstance(_function(tool), dict) for tool in tools):
        raise BadRow("wrong_type", "tools is not a list of JSON schemas, each of a function")
    return tools


def _call(calls: Any) -> str:
    """Return the call of an assistant message as text; a turn makes one."""
    if not isinstance(calls, list) or len(calls) != 1:
        count = len(calls) if isinstance(calls, list) else "no list of"
        raise BadRow("tool_calls", f"a turn of the assistant makes one tool call, not {count}")
    function = _function(calls[0])
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict) or not isinstance(function.get("name"), str):
        raise BadRow("tool_calls", "tool_calls holds something other than {name, arguments}")
    return written(ToolCall(function["name"], _without_nulls(arguments)))


def _function(value: Any) -> Any:
    return value.get("function", value) if isinstance(value, dict) else None


def _without_nulls(value: Any) -> Any:
    """Return ``value`` without the keys that Parquet gave it because another row has them."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _no_message(column: str) -> BadRow:
    return BadRow("wrong_type", f"{column} holds something other than {{role, content}} strings")
