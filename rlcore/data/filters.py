"""Rows that are left out: by SQL conditions, as too long, or as the chat template would lose what
they say, which nobody would notice."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from rlcore.data.rows import Reject, Row, refused_token
from rlcore.models.chat import (
    REASONING,
    Encoded,
    Message,
    Refused,
    Tools,
    encode_demonstrations,
    encode_prompts,
    rendered,
)
from rlcore.models.stop_tokens import closing_token
from rlcore.models.tokenizer import special_tokens
from schemas.data import DataSection
from schemas.errors import UserError
from schemas.table_list import MESSAGES

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

T = TypeVar("T")
# What a condition sees, also where there is no row to tell the types from.
_PROMPT_COLUMNS = {
    **dict.fromkeys(("split", "subset", "data_source"), pl.String),
    "prompt": MESSAGES,
    **dict.fromkeys(("ability", "reward_style", "ground_truth", "extra_info"), pl.String),
}
_Shape = tuple[tuple[str, bool], ...]  # of each message: its role, whether it has reasoning
_TOOL = "probed_tool"
_SHRINKS = 4  # re-renderings until a truncated prompt fits; one is nearly always enough


def apply_filters(rows: list[Row], conditions: Sequence[str]) -> tuple[list[Row], list[Reject]]:
    """Return the rows for which every SQL condition is true, and a Reject for each other row.

    A condition sees the columns split, subset, data_source, prompt, ability, reward_style,
    ground_truth, extra_info. Raises ``UserError`` for a condition that DuckDB does not understand.
    """
    rejects: list[Reject] = []
    for condition in conditions:
        from rlcore.results.conditions import filter_rows

        columns = {name: [getattr(row, name) for row in rows] for name in _PROMPT_COLUMNS}
        frame = pl.DataFrame(columns, schema=_PROMPT_COLUMNS).with_row_index("position")
        kept = set(filter_rows(frame, condition, where="data.filters")["position"])
        rejects += [
            row.reject("filter", f"data.filters: {condition}")
            for i, row in enumerate(rows)
            if i not in kept
        ]
        rows = [row for i, row in enumerate(rows) if i in kept]
    return rows, rejects


def check_conditions(conditions: Sequence[str]) -> None:
    """Raise ``UserError`` for a condition that DuckDB does not understand over the prompt columns.

    Its values are not looked at: a cast may still fail on a row.
    """
    apply_filters([], conditions)


def worded_rejects(rows: list[Row], data: DataSection) -> tuple[list[Row], list[Reject]]:
    """Return the rows whose prompts may fit ``data.max_prompt_tokens``, and a Reject per other.

    Needs no tokenizer: a prompt has at least as many tokens as words. Prompts that are cut fit.
    """
    if data.over_length not in ("drop", "error"):
        return rows, []
    most = data.max_prompt_tokens
    long = Refused("over_length", f"more words than data.max_prompt_tokens = {most}")
    return _divided(rows, lambda row: long if len(row.prompt_text.split()) > most else None)


def _divided(
    rows: list[Row], refused: Callable[[Row], Refused | None]
) -> tuple[list[Row], list[Reject]]:
    """Return the rows that are not ``refused``, and a Reject for each other one."""
    found = [(row, refused(row)) for row in rows]
    rejects = [row.reject(why.reason, why.detail) for row, why in found if why]
    return [row for row, why in found if not why], rejects


def fit_prompts(
    tokenizer: "ChatTokenizer",
    rows: list[Row],
    data: DataSection,
    tools: Tools = (),
) -> tuple[list[tuple[Row, list[int]]], list[Reject]]:
    """Return (row, prompt token ids) of the prompts within ``data.max_prompt_tokens``.

    Longer ones are dropped, raise ``UserError``, or lose words of their longest message at the
    left, in the middle or at the right, as ``data.over_length`` says: roles and turn marks stay.
    """
    kept: list[tuple[Row, list[int]]] = []
    rejects = []
    for row, ids in _by_tools(
        rows,
        tools,
        lambda some, own: encode_prompts(tokenizer, [row.prompt for row in some], own),
    ):
        if isinstance(ids, Refused):
            rejects.append(row.reject(ids.reason, ids.detail))
        elif len(ids) <= data.max_prompt_tokens:
            kept.append((row, ids))
        elif data.over_length == "error":
            raise UserError(
                f"{row.source} row {row.index}: its prompt has {len(ids)} tokens, over"
                f" data.max_prompt_tokens = {data.max_prompt_tokens}; raise it, or set"
                " data.over_length to 'drop'"
            )
        elif (
            data.over_length == "drop"
            or (short := _truncate(tokenizer, row, ids, data, tools)) is None
        ):
            detail = f"{len(ids)} tokens, over data.max_prompt_tokens = {data.max_prompt_tokens}"
            rejects.append(row.reject("over_length", detail))
        else:
            kept.append((row, short))
    return kept, rejects


def fit_demonstrations(
    tokenizer: "ChatTokenizer",
    rows: list[Row],
    max_tokens: int | None,
    tools: Tools = (),
) -> tuple[list[tuple[Row, Encoded]], list[Reject]]:
    """Return (row, tokens) of the demonstrations within ``max_tokens``, and a Reject per other.

    A demonstration is never cut: without its end it would teach the model not to stop. Where none
    is trained on (``max_tokens`` is None) and the chat template writes no end, there are none.
    """
    if max_tokens is None and closing_token(tokenizer) is None:
        return [], []
    kept: list[tuple[Row, Encoded]] = []
    rejects = []
    for row, tokens in _by_tools(
        rows,
        tools,
        lambda some, own: encode_demonstrations(tokenizer, [row.messages for row in some], own),
    ):
        if isinstance(tokens, Refused):
            rejects.append(row.reject(tokens.reason, f"demonstration: {tokens.detail}"))
        elif max_tokens is not None and len(tokens.token_ids) > max_tokens:
            detail = f"{len(tokens.token_ids)} tokens, over sft.max_tokens = {max_tokens}"
            rejects.append(row.reject("over_length_demonstration", detail))
        else:
            kept.append((row, tokens))
    return kept, rejects


def special_token_rejects(
    tokenizer: "ChatTokenizer", rows: list[Row]
) -> tuple[list[Row], list[Reject]]:
    """Reject rows whose text contains a special token, which would open or end a turn."""
    tokens = special_tokens(tokenizer)
    return _divided(rows, lambda row: refused_token(tokens, row.messages, row.tools))


def _by_tools(
    rows: list[Row], tools: Tools, encode: Callable[[list[Row], Tools], list[T]]
) -> Iterator[tuple[Row, T]]:
    """Yield (row, encoded) in order; ``encode`` gets rows that show the same tools: their own, or
    ``tools``."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(json.dumps(row.tools) if row.tools else "", []).append(row)
    encoded = {own: iter(encode(some, some[0].tools or tools)) for own, some in groups.items()}
    for row in rows:
        yield row, next(encoded[json.dumps(row.tools) if row.tools else ""])


def _truncate(
    tokenizer: "ChatTokenizer", row: Row, ids: list[int], data: DataSection, tools: Tools
) -> list[int] | None:
    """Shorten ``row.prompt`` in place; return its ids, or None where no text is left to remove."""
    side = data.over_length.removeprefix("truncate_")
    longest = max(row.prompt, key=lambda message: len(message["content"]))
    for _ in range(_SHRINKS):
        over = len(ids) - data.max_prompt_tokens
        if over <= 0:
            return ids
        tokens = tokenizer(longest["content"], add_special_tokens=False)["input_ids"]
        keep = len(tokens) - over
        if keep < 1:
            return None
        head = {"left": 0, "right": keep, "middle": (keep + 1) // 2}[side]
        cut = tokens[:head] + tokens[len(tokens) - (keep - head) :]
        text = str(tokenizer.decode(cut))
        shortened: list[Message] = [
            {**m, "content": text} if m is longest else m for m in row.prompt
        ]
        longest = shortened[row.prompt.index(longest)]
        row.prompt = shortened
        again = encode_prompts(tokenizer, [row.prompt], row.tools or tools)[0]
        if isinstance(again, Refused):
            return None
        ids = again
    return ids if len(ids) <= data.max_prompt_tokens else None


def unshown_rejects(tokenizer: "ChatTokenizer", rows: list[Row]) -> tuple[list[Row], list[Reject]]:
    """Reject the rows of which the template does not show a message, the reasoning of a turn where
    that turn is the last, or the row's own tools.

    Reasoning of earlier turns is the template's to keep or drop, as it does while sampling. What is
    shown is found out once per row of roles, with words in place of the contents; a template that
    refuses those says so of the rows themselves.
    """
    unshown = cache(partial(_unshown, tokenizer))

    def refused(row: Row) -> Refused | None:
        shape = tuple((message["role"], REASONING[0] in message) for message in row.messages)
        what = unshown(shape, has_tools=bool(row.tools))
        return Refused("not_shown", f"the chat template does not show {what}") if what else None

    return _divided(rows, refused)


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
    text = rendered(tokenizer, chat, tools, open_turn=chat[-1]["role"] != "assistant")
    return None if isinstance(text, Refused) else text.lower()


def _word(what: str, number: int) -> str:
    return f"{what}-{number}-here"


def _tool() -> dict[str, Any]:
    schema = {"type": "object", "properties": {}}
    function = {"name": _TOOL, "description": "A tool.", "parameters": schema}
    return {"type": "function", "function": function}
