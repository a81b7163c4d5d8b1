"""Tool calls as text, in the form that the chat templates of Hermes and Qwen show:

    <tool_call>{"name": ..., "arguments": {...}}</tool_call>

(github.com/NousResearch/Hermes-Function-Calling).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, as the policy wrote it."""

    name: str
    arguments: Mapping[str, Any]


class Malformed(ValueError):
    """A turn that means to call a tool and does not; the message says what is wrong, to the
    policy."""


def call_in(text: str) -> ToolCall | None:
    """Return the call that ``text``, one turn, ends with; None where it holds no tag at all.

    Raises Malformed for more than one call, for text behind it (an answer, or a result made up),
    for a tag without its other half, and for what is not an object of ``name`` and ``arguments``.
    """
    if OPEN not in text and CLOSE not in text:
        return None
    if text.count(OPEN) != 1 or text.count(CLOSE) != 1:
        raise Malformed(f"write exactly one {OPEN} and one {CLOSE} in a turn")
    _, _, rest = text.partition(OPEN)
    body, closed, behind = rest.partition(CLOSE)
    if not closed:
        raise Malformed(f"{CLOSE} stands before {OPEN}")
    if behind.strip():
        raise Malformed(f"write nothing behind {CLOSE}; the result follows")
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed("the call is not JSON") from None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise Malformed('the call is not an object with "name" and "arguments"')
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        raise Malformed('"arguments" is not an object')
    return ToolCall(call["name"], arguments)


def written(call: ToolCall) -> str:
    """Return ``call`` as the policy is to write it."""
    body = {"name": call.name, "arguments": dict(call.arguments)}
    return f"{OPEN}{json.dumps(body, ensure_ascii=False)}{CLOSE}"
