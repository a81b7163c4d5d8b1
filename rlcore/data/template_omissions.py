"""What a row says and the chat template leaves out, which would be lost in silence."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlcore.data.rows import Reject, Row
from rlcore.models.chat import REASONING, Message, Refused, Tools, rendered

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

REASON = "not_shown"
_Shape = tuple[tuple[str, bool], ...]  # of each message: its role, whether it has reasoning
_TOOL = "probed_tool"


def unshown_rejects(tokenizer: "ChatTokenizer", rows: list[Row]) -> tuple[list[Row], list[Reject]]:
    """Reject the rows of which the template does not show a message, the reasoning of a turn where
    that turn is the last, or the row's own tools.

    Reasoning of earlier turns is the template's to keep or drop, as it does while sampling. What is
    shown is found out once per row of roles, with words in place of the contents; a template that
    refuses those says so of the rows themselves.
    """
    found: dict[tuple[_Shape, bool], str] = {}
    kept, rejects = [], []
    for row in rows:
        shape = tuple((message["role"], REASONING[0] in message) for message in row.messages)
        key = (shape, bool(row.tools))
        if key not in found:
            found[key] = _unshown(tokenizer, shape, has_tools=bool(row.tools))
        if found[key]:
            detail = f"the chat template does not show {found[key]}"
            rejects.append(row.reject(REASON, detail))
        else:
            kept.append(row)
    return kept, rejects


def _unshown(tokenizer: "ChatTokenizer", shape: _Shape, *, has_tools: bool) -> str:
    """Return what the template leaves out of chats of ``shape``, "" for nothing."""
    chat: list[Message] = []
    tools: Tools = [_tool()] if has_tools else ()
    for number, (role, thinks) in enumerate(shape):
        chat.append({"role": role, "content": _word("said", number)})
        if thinks:
            chat[-1][REASONING[0]] = _word("thought", number)
            text = _rendered(tokenizer, chat, tools)
            if text is not None and _word("thought", number) not in text:
                return f"the {REASONING[0]} of a message"
    text = _rendered(tokenizer, chat, tools)
    if text is None:
        return ""
    if has_tools and _TOOL not in text:
        return "the tools of a row"
    left_out = (role for n, (role, _) in enumerate(shape) if _word("said", n) not in text)
    return next((f"messages of role {role!r}" for role in left_out), "")


def _rendered(tokenizer: "ChatTokenizer", chat: Sequence[Message], tools: Tools) -> str | None:
    (text,) = rendered(tokenizer, [list(chat)], tools, open_turn=chat[-1]["role"] != "assistant")
    return None if isinstance(text, Refused) else text.lower()


def _word(what: str, number: int) -> str:
    return f"{what}-{number}-here"


def _tool() -> dict[str, Any]:
    schema = {"type": "object", "properties": {}}
    function = {"name": _TOOL, "description": "A tool.", "parameters": schema}
    return {"type": "function", "function": function}
