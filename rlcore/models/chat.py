"""Messages -> token ids, by the tokenizer's chat template.

A demonstration is tokenized in the pieces that a rollout consists of: the prompt as rollouts see
it, then the assistant's tokens up to the one that closes its turn. So SFT trains exactly the tokens
that are sampled. ``tools``: JSON schemas of what the policy can call, for templates that show them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlcore.models.stop_tokens import TEMPLATE_ERRORS, closing_or_eos
from schemas.errors import UserError

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

Message = dict[str, str]  # role, content, perhaps reasoning_content
Tools = Sequence[Mapping[str, Any]]

# A message's reasoning has the first name with us; templates read it under any of them.
REASONING = ("reasoning_content", "thinking", "reasoning")

BATCH = 4096  # texts that are encoded in one call, which holds all that the tokenizer says of them
SHOWN = 20  # characters of a turn in a reason
PROBED = 64  # demonstrations whose piecewise tokens are compared with their text


@dataclass(frozen=True, slots=True)
class Encoded:
    """``token_ids`` of a rendered chat; ``loss_mask``: True on the assistant's, the one that closes
    a turn included."""

    token_ids: list[int]
    loss_mask: list[bool]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a chat cannot be rendered or masked: a reason for the Rejects table, and its detail."""

    reason: str
    detail: str


def encode_prompts(
    tokenizer: "ChatTokenizer", prompts: Sequence[list[Message]], tools: Tools = ()
) -> list[list[int] | Refused]:
    """Return token ids per prompt, the assistant's turn opened (``add_generation_prompt``)."""
    texts = [rendered(tokenizer, prompt, tools, open_turn=True) for prompt in prompts]
    ids = iter(_tokenize(tokenizer, [text for text in texts if isinstance(text, str)]))
    return [next(ids) if isinstance(text, str) else text for text in texts]


def encode_demonstrations(
    tokenizer: "ChatTokenizer",
    demonstrations: Sequence[list[Message]],
    tools: Tools = (),
    *,
    last_only: bool = False,
) -> list[Encoded | Refused]:
    """Return token ids and loss mask per demonstration; what follows the last turn's end is left
    out.

    Every assistant turn, or with ``last_only`` the last message alone, carries loss, from the end
    of its generation prompt to the token that closes it (``closing_token``). Rows whose turns a
    template renders differently once more turns follow (rewrites history) have no such mask, and
    are refused, as are those whose thoughts (``</think>``) it drops. Raises ``UserError`` when the
    template ends assistant turns without a stop token, or the tokenizer does not encode piecewise.
    """
    closing = closing_or_eos(tokenizer)
    pieces = [_pieces(tokenizer, chat, tools, closing, last_only) for chat in demonstrations]
    kept = [row for row in pieces if not isinstance(row, Refused)]
    flat = iter(_tokenize(tokenizer, [text for row in kept for text, _ in row]))
    encoded: list[Encoded | Refused] = []
    for row in pieces:
        if isinstance(row, Refused):
            encoded.append(row)
            continue
        ids, mask = [], []
        for _, is_loss in row:
            tokens = next(flat)
            ids += tokens
            mask += [is_loss] * len(tokens)
        encoded.append(Encoded(ids, mask))
    _probe(tokenizer, pieces, encoded)
    return encoded


def _pieces(
    tokenizer: "ChatTokenizer", chat: list[Message], tools: Tools, closing: str, last_only: bool
) -> list[tuple[str, bool]] | Refused:
    """Return the (text, carries loss) pieces of one chat."""
    row: list[tuple[str, bool]] = []
    done = ""
    for at, message in enumerate(chat):
        if message["role"] != "assistant" or (last_only and at < len(chat) - 1):
            continue
        before = rendered(tokenizer, chat[:at], tools, open_turn=True)
        after = rendered(tokenizer, chat[: at + 1], tools, open_turn=False)
        if isinstance(before, Refused):
            return before
        if isinstance(after, Refused):
            return after
        if not (before.startswith(done) and after.startswith(before)):
            asked = rendered(tokenizer, chat[:at], tools, open_turn=False)
            return _why_apart(done, before, after, asked)
        turn = after[len(before) :]
        thought = message["content"].rpartition("</think>")[0].rpartition("<think>")[2]
        if thought.strip() not in turn:
            return Refused("not_shown", "the chat template does not show the text before </think>")
        end = turn.rfind(closing)
        if end < 0:
            raise UserError(
                f"the chat template ends an assistant turn without the stop token '{closing}', so a"
                " model could not learn to stop; set model.chat_template to one that writes"
                " eos_token, or the tokenizer's eos_token to the template's turn end"
            )
        spoken = turn[: end + len(closing)]
        row += [(before[len(done) :], False), (spoken, True)]
        done = before + spoken
    return row


def _why_apart(done: str, before: str, after: str, asked: str | Refused) -> Refused:
    """Return why ``after``, a chat up to a turn's end, does not begin with ``before``, the prompt
    of that turn, or ``before`` not with ``done``, the turns until then."""
    if (
        isinstance(asked, str)
        and before.startswith(done)
        and all(text.startswith(asked) for text in (before, after))
    ):
        opening, turn = before[len(asked) :], after[len(asked) :]
        return Refused(
            "template_opens_otherwise",
            f"the chat template opens a turn with {opening!r} for sampling, and writes this one as"
            f" {turn[: len(opening) + SHOWN]!r}, so it does not follow the prompt that a policy"
            " sees; begin demonstrations as the template opens turns (after <think>: with their"
            " reasoning, where the template shows it), or set model.chat_template to one that opens"
            " turns as it writes them",
        )
    return Refused(
        "template_rewrites_history",
        "the chat template renders an earlier turn differently once another follows, so no mask of"
        " assistant tokens is correct; set model.chat_template to one that does not",
    )


def _probe(
    tokenizer: "ChatTokenizer",
    pieces: Sequence[list[tuple[str, bool]] | Refused],
    encoded: Sequence[Encoded | Refused],
) -> None:
    for row, tokens in list(zip(pieces, encoded, strict=True))[:PROBED]:
        if isinstance(row, Refused) or isinstance(tokens, Refused):
            continue
        whole = _tokenize(tokenizer, ["".join(text for text, _ in row)])[0]
        if tokenizer.decode(tokens.token_ids) != tokenizer.decode(whole):
            raise UserError(
                f"tokenizer '{tokenizer.name_or_path}' encodes a text differently in pieces (it"
                " adds spaces at their start), so prompts and responses would not join; use a"
                " byte-level tokenizer"
            )


def rendered(
    tokenizer: "ChatTokenizer", chat: Sequence[Message], tools: Tools, *, open_turn: bool
) -> str | Refused:
    """Return the text of ``chat``; ``open_turn``: the assistant's turn follows."""
    try:
        (text,) = tokenizer.apply_chat_template(
            [[_for_template(message) for message in chat]],
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=open_turn,
        )
    except TEMPLATE_ERRORS as error:
        return Refused("template", f"the chat template refuses the row: {error}")
    return str(text)


def _for_template(message: Message) -> Message:
    """Return ``message`` with its reasoning, if any, under all names that templates read."""
    if REASONING[0] not in message:
        return message
    return {**message, **dict.fromkeys(REASONING, message[REASONING[0]])}


def _tokenize(tokenizer: "ChatTokenizer", texts: list[str]) -> list[list[int]]:
    """Encode without BOS: templates write their own. Equal texts are encoded once."""
    found = dict[str, list[int]]()
    distinct = list(dict.fromkeys(texts))
    for start in range(0, len(distinct), BATCH):
        batch = distinct[start : start + BATCH]
        ids = tokenizer(batch, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        found.update(zip(batch, ids, strict=True))
    return [found[text] for text in texts]


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema that templates show of a tool, by its annotations and docstring
    (Google style).

    Raises ValueError with what is missing.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        return get_json_schema(function)
    except Exception as error:  # noqa: BLE001 - of many kinds; each says what is missing
        raise ValueError(" ".join(str(error).split())) from None
