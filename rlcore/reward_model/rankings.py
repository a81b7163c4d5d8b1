"""One row of a file of preferences -> its prompt and ranked responses.

Forms, by their columns:

- ``chosen`` and ``rejected``: TRL's, with the ``prompt`` apart or repeated in both conversations;
  UltraFeedback's, with the prompt as text and whole conversations; hh's, with the whole dialogue as
  text ("\\n\\nHuman: ... \\n\\nAssistant: ...").
- ``prompt``, ``responses`` and ``ranks``, 1 the best.

Text is a turn of the user in a prompt, of the assistant in a response.
"""

import re
from collections.abc import Sequence
from typing import Any

from rlcore.data.chat import REASONING, Message
from rlcore.data.conversation import conversation_of
from rlcore.data.rows import BadRow, said

FORMS = "TRL (prompt, chosen, rejected) or ranked (prompt, responses, ranks)"
_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


class EqualResponses(Exception):
    """No response of a row is better than another."""


def ranked_row(row: dict[str, Any]) -> tuple[list[Message], list[tuple[str, int]]]:
    """Return the prompt of a row and its (response, rank).

    Raises BadRow for a row of no known form, EqualResponses where all rank alike: by their ranks,
    their text, or UltraFeedback's ``score_chosen`` and ``score_rejected``.
    """
    row = {name: value for name, value in row.items() if value is not None}
    asked = _prompt(row["prompt"]) if "prompt" in row else None
    chats, ranks = _ranked_chats(row)
    sides = [_divided(asked, chat) for chat in chats]
    prompt = sides[0][0]
    if any(_stripped(other) != _stripped(prompt) for other, _ in sides):
        raise BadRow("other_prompt", "its conversations differ before their last turn")
    if not prompt or prompt[-1]["role"] in ("assistant", "system"):
        raise BadRow("roles", "a prompt ends with a user's turn")
    replies = [_reply(turns) for _, turns in sides]
    scores = row.get("score_chosen"), row.get("score_rejected")
    tied = scores[0] is not None and scores[0] == scores[1]
    if tied or len(set(ranks)) == 1 or len(set(replies)) == 1:
        raise EqualResponses
    of_text: dict[str, int] = {}
    for text, rank in zip(replies, ranks, strict=True):
        if of_text.setdefault(text, rank) != rank:
            raise BadRow("contradiction", f"the response {text[:80]!r} has two ranks")
    return prompt, list(zip(replies, ranks, strict=True))


def _ranked_chats(row: dict[str, Any]) -> tuple[list[list[Message]], list[int]]:
    """Return the conversations of a row, each with its rank."""
    if "chosen" in row or "rejected" in row:
        if missing := [name for name in ("chosen", "rejected") if name not in row]:
            raise BadRow("missing", f"{missing[0]} is missing or null")
        return [_chat(row[name], "assistant", name) for name in ("chosen", "rejected")], [1, 2]
    responses, ranks = row.get("responses"), row.get("ranks")
    if "prompt" not in row or not isinstance(responses, list) or not isinstance(ranks, list):
        raise BadRow("wrong_form", f"it has columns {', '.join(row)}; the form must be {FORMS}")
    if len(ranks) != len(responses) or len(ranks) < 2 or not all(map(_is_rank, ranks)):
        raise BadRow(
            "ranks", "it needs two responses or more, and one rank of 1 (best) or more each"
        )
    return [_chat(one, "assistant", "responses") for one in responses], [int(r) for r in ranks]


def _is_rank(rank: Any) -> bool:
    number = isinstance(rank, int | float) and not isinstance(rank, bool)
    return number and rank >= 1 and rank == int(rank)


def _divided(
    asked: list[Message] | None, chat: list[Message]
) -> tuple[list[Message], list[Message]]:
    """Return the prompt of a conversation and what answers it. A conversation that begins with
    another turn than the assistant's has the prompt in it, of which ``asked`` may be the end."""
    if not chat:
        raise BadRow("response", "a response has no message")
    if asked is not None and chat[0]["role"] == "assistant":
        return asked, chat
    prompt, reply = chat[:-1], chat[-1:]
    if asked is not None and _stripped(prompt[-len(asked) :]) != _stripped(asked):
        raise BadRow("other_prompt", "a conversation does not begin with the prompt of its row")
    return prompt, reply


def _stripped(chat: Sequence[Message]) -> list[Message]:
    return [{**message, "content": message["content"].strip()} for message in chat]


def _prompt(value: Any) -> list[Message]:
    chat = _chat(value, "user", "prompt")
    # hh's prompt ends where the assistant is to speak
    return chat[:-1] if len(chat) > 1 and not chat[-1]["content"].strip() else chat


def _chat(value: Any, role: str, column: str) -> list[Message]:
    if not isinstance(value, str | list | dict):
        raise BadRow("wrong_type", f"{column} is {value!r:.80}, neither text nor messages")
    spoken = _dialogue(value) if isinstance(value, str) else []
    chat = spoken or conversation_of(value, column, role)
    try:
        said(chat).encode()
    except UnicodeEncodeError:
        raise BadRow("surrogate", f"{column} holds half of a character (such as \\ud83d)") from None
    if any(REASONING[0] in message for message in chat):
        raise BadRow(
            "reasoning",
            f"{column} has {REASONING[0]}, and responses are compared as text; write it into the"
            " content, as the model does",
        )
    return chat


def _dialogue(text: str) -> list[Message]:
    """Return the turns of a dialogue in hh's form; none where ``text`` is not one."""
    marks = list(_TURN.finditer(text))
    if not marks or marks[0].start() != 0:
        return []
    if not text.startswith("\n\n") and (len(marks) < 2 or marks[0][1] != "Human"):
        return []  # a text that begins with that word
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [
        {"role": _ROLES[mark[1]], "content": text[mark.end() : end].strip()}
        for mark, end in zip(marks, ends, strict=True)
    ]


def _reply(turns: Sequence[Message]) -> str:
    if len(turns) != 1 or turns[0]["role"] != "assistant" or not turns[0]["content"].strip():
        raise BadRow("response", "a response is one assistant turn that is not empty")
    return turns[0]["content"]
