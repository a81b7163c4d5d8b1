"""Conversations: messages, tool calls as text, where the policy's part begins.

As OpenAI's API and TRL have them (docs/source/dataset_formats.md, "Tool calling"): ``messages`` of
a role and a content, which is text or a list of parts, with the roles ``tool`` or ``environment``
between assistant turns, ``tool_calls`` and ``reasoning_content`` on assistant messages, and a
column ``tools`` of JSON schemas, as a list or as JSON text. As ShareGPT has them: messages of
``from`` and ``value``. What a message means and is not read is refused, never left out.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from rlcore.data.rows import BadRow
from rlcore.data.values import is_conversation, value_in
from rlcore.envs.tools import ToolCall, written
from rlcore.models.chat import REASONING, Message

ANSWERS = ("tool", "environment")  # roles of what answers the policy between its turns
_ROLES = ("user", "assistant", *ANSWERS)
# Names of OpenAI's newer and older API, of ShareGPT and of Gemini -> ours.
_RENAMED = {
    "developer": "system",
    "function": "tool",
    "observation": "tool",
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
}
_CALLS = "function_call"  # of ShareGPT: a turn of the assistant that is nothing but calls
_TEXT_PARTS = ("text", "input_text", "output_text")
_REASONING_PARTS = ("thinking", "reasoning")
_MEDIA = ("audio", "image", "images", "video", "videos")
# What would change what is trained, and cannot be: key -> the values that mean nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "refusal": (None, ""),
    **dict.fromkeys(_MEDIA, (None, "", [])),
}
_TRAINED: dict[str, tuple[Any, ...]] = {"weight": (None, 1), "train": (None, True)}


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


def conversation_of(value: Any, column: str, role: str, *, padded: bool = False) -> list[Message]:
    """Return the messages of a list, of messages written as text, or of plain text, said by
    ``role``.

    ``padded``: as of ``RawTable``. Raises BadRow for text that begins as messages do and is none.
    """
    if isinstance(value, str):
        if not is_conversation(value):
            return [{"role": role, "content": value}]
        value = _conversation_in(value, column)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list):
        raise BadRow(
            "wrong_type" if value is not None else "empty_prompt", f"{column} is {value!r:.80}"
        )
    return [message_of(message, column, padded=padded) for message in value]


def message_of(value: Any, column: str, *, padded: bool = False) -> Message:
    """Return a message with its tool calls, if any, as text, and its reasoning, if any, as
    ``reasoning_content``. Raises BadRow."""
    keys = ("role", "content") if isinstance(value, dict) and "role" in value else ("from", "value")
    speaker = value.get(keys[0]) if isinstance(value, dict) else None
    if not isinstance(speaker, str):
        raise _no_message(column)
    role, content = _RENAMED.get(speaker, speaker), value.get(keys[1])
    _check_meant(value, role)
    calls = value.get("tool_calls") or value.get("function_call")
    if role == _CALLS:
        role, content, calls = "assistant", None, content
    text, thought = _text_and_reasoning(content, column)
    reasoning = _reasoning(value, thought)
    if (calls or reasoning) and role != "assistant":
        what = "tool calls" if calls else "reasoning"
        raise BadRow("roles", f"a message of role {role!r} has {what}, as only the assistant may")
    if calls:
        text = "\n".join(part for part in (text, *_written(calls, padded=padded)) if part)
    message = {"role": role, "content": text}
    return {**message, REASONING[0]: reasoning} if reasoning else message


def tools_of(value: Any, *, padded: bool = False) -> list[dict[str, Any]]:
    """Return a row's own tools: JSON schemas, given as a list or as JSON text; [] for none.

    ``padded``: as of ``RawTable``; a null in JSON text is the user's own. Raises BadRow.
    """
    if isinstance(value, str):
        try:
            tools = json.loads(value) if value.strip() else []
        except ValueError as error:
            raise BadRow("wrong_type", f"tools is no JSON text: {error}") from None
    else:
        tools = _without_nulls(value or []) if padded else value or []
    if not isinstance(tools, list) or not all(isinstance(_function(tool), dict) for tool in tools):
        raise BadRow("wrong_type", "tools is not a list of JSON schemas, each of a function")
    return tools


def _conversation_in(text: str, column: str) -> Any:
    try:
        return value_in(text)
    except ValueError as error:
        raise BadRow(
            "conversation_as_text",
            f"{column} begins as a list of messages written as text, and {error}: {text!r:.80};"
            " write it whole, as JSON, or give plain text as [{role: user, content: ...}]",
        ) from None


def check_text_only(row: Mapping[str, Any]) -> None:
    """Raise BadRow for a row with a column of images or sounds that is not empty."""
    for column in _MEDIA:
        if not _is_empty(row.get(column)):
            raise BadRow("content_part", f"the row has {column}, and only text is read")


def _is_empty(value: Any) -> bool:
    """Return whether ``value`` holds nothing, as Parquet's structures of nulls."""
    parts = value.values() if isinstance(value, dict) else value
    return all(map(_is_empty, parts)) if isinstance(value, dict | list) else not value


def _check_meant(value: Mapping[str, Any], role: str) -> None:
    """Refuse what would be left out: turns that shall not be trained, and what is no text."""
    for key, plain in _REFUSED.items():
        if value.get(key) not in plain:
            raise BadRow("content_part", f"a message has {key}, and only text is read")
    for key, plain in _TRAINED.items():
        if role == "assistant" and value.get(key) not in plain:
            raise BadRow(
                "untrained_turn",
                f"a turn of the assistant has {key} {value[key]!r}, and all of them are trained"
                " alike; cut the conversation behind a turn that is to be trained",
            )


def _text_and_reasoning(content: Any, column: str) -> tuple[str, str]:
    """Return the text of a content, of a list of parts joined as chat templates that take parts
    write them, and the reasoning among the parts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    said: dict[str, list[str]] = {"text": [], "reasoning": []}
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if not isinstance(part, dict):
            raise _no_message(column)
        kind = part.get("type") or "text"
        if kind not in (*_TEXT_PARTS, *_REASONING_PARTS):
            raise BadRow("content_part", f"content has a part of type {kind!r}; only text is read")
        to = "reasoning" if kind in _REASONING_PARTS else "text"
        text = part.get(kind, part.get("text"))
        if not isinstance(text, str):
            raise BadRow("content_part", f"content has a part of type {kind!r} without a text")
        said[to].append(text)
    return "".join(said["text"]), "".join(said["reasoning"])


def _reasoning(value: Mapping[str, Any], thought: str) -> str:
    """Return what a message has of reasoning, under whichever name."""
    found = {key: value[key] for key in REASONING if value.get(key) not in (None, "")}
    if bad := [key for key, text in found.items() if not isinstance(text, str)]:
        raise BadRow("wrong_type", f"{bad[0]} of a message is not a string")
    texts = {text for text in (thought, *found.values()) if text}
    if len(texts) > 1:
        names = ", ".join(found) or "parts"
        raise BadRow("reasoning", f"a message has several reasonings that differ ({names})")
    return next(iter(texts), "")


def _written(calls: Any, *, padded: bool) -> list[str]:
    """Return each call of an assistant message as text."""
    if isinstance(calls, str):
        try:
            calls = json.loads(calls)
        except ValueError:
            raise BadRow("tool_calls", "a tool call is no JSON text") from None
    calls = [calls] if isinstance(calls, dict) else calls
    if not isinstance(calls, list):
        raise BadRow("tool_calls", "tool_calls is no list")
    try:
        return [written(_call(call, padded=padded)) for call in calls]
    except TypeError as error:  # a date, a decimal
        raise BadRow("tool_calls", f"an argument of a tool call is not JSON: {error}") from None


def _call(call: Any, *, padded: bool) -> ToolCall:
    function = _function(call)
    name = function.get("name") if isinstance(function, dict) else None
    arguments = function.get("arguments", function.get("parameters")) if name else None
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments) if arguments.strip() else {}
    elif padded:
        arguments = _without_nulls(arguments)
    if isinstance(name, str) and (arguments is None or isinstance(arguments, dict)):
        return ToolCall(name, arguments or {})
    raise BadRow("tool_calls", "tool_calls holds something other than {name, arguments}")


def _function(value: Any) -> Any:
    return value.get("function", value) if isinstance(value, dict) else None


def _without_nulls(value: Any) -> Any:
    """Return ``value`` without the keys that Parquet gave it because another row has them."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _no_message(column: str) -> BadRow:
    return BadRow(
        "wrong_type",
        f"{column} holds something other than {{role, content}} of strings or parts of text",
    )
