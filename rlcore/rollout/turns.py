"""What an environment says between two turns of the policy -> token ids."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from rlcore.models.chat import Message, Tools
from rlcore.models.stop_tokens import OPENING, PLACEHOLDER, closing_or_eos
from rlcore.models.tokenizer import special_tokens
from schemas.errors import UserError

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

CUT = " ... (cut)"


@dataclass
class TurnEncoder:
    """Encodes what follows a turn of the policy: the environment's messages, the next turn opened.

    They are rendered behind a placeholder turn, and the suffix is taken. ``max_tokens``: of the
    messages' contents together; what is beyond is cut. A special token in a content, which would
    open or end a turn, loses its first character.

    Raises UserError at the first use where the template renders an earlier turn differently once
    another follows, or does not show a message of a role.
    """

    tokenizer: "ChatTokenizer"
    tools: Tools
    max_tokens: int
    _shown: set[str] = field(default_factory=set)

    def encode(self, messages: Sequence[Message], *, after: Sequence[int]) -> list[int]:
        """Return the ids between the turn's last sampled id and the first of the next turn.

        ``after``: the turn's ids. Where the last is not the token with which the template closes a
        turn, because it was cut off or ended by another stop token or a stop string, that comes
        first.
        """
        cut = self._within_budget(messages)
        for role in {message["role"] for message in cut}:
            self._check_role(role)
        text = self._rendered([*OPENING, *cut], open_turn=True)
        closed, closing = self._closed
        suffix = text[len(closed) :]
        if after[-1] != self.tokenizer.convert_tokens_to_ids(closing):
            suffix = closing + suffix
        encoded = self.tokenizer([suffix], add_special_tokens=False)
        return list(encoded["input_ids"][0])

    def _within_budget(self, messages: Sequence[Message]) -> list[Message]:
        left, kept = self.max_tokens, []
        for message in messages:
            content = harmless(message["content"], self.tokenizer)
            spans = self.tokenizer(
                [content], add_special_tokens=False, return_offsets_mapping=True
            )["offset_mapping"][0]
            if len(spans) > left:
                content = content[: spans[left - 1][1] if left else 0] + CUT
            left = max(0, left - len(spans))
            kept.append({"role": message["role"], "content": content})
        return kept

    @cached_property
    def _closed(self) -> tuple[str, str]:
        """The rendered placeholder turn, up to the token that closes it, and that token."""
        text = self._rendered(OPENING, open_turn=False)
        closing = closing_or_eos(self.tokenizer)
        end = text.rfind(closing)
        if end < text.find(PLACEHOLDER):
            raise UserError(
                f"the chat template ends assistant turns without the stop token '{closing}', so"
                " a turn has no end; set model.chat_template to one that writes eos_token"
            )
        return text[: end + len(closing)], closing

    def _check_role(self, role: str) -> None:
        """Raise UserError unless a message of ``role`` is shown behind turns that stay as is."""
        if role in self._shown:
            return
        probe = {"role": role, "content": "OBSERVATION"}
        text = self._rendered([*OPENING, probe], open_turn=True)
        if probe["content"] not in text:
            raise UserError(
                f"the chat template does not show messages of role {role!r}, with which the"
                " environment answers; set model.chat_template to one that does"
            )
        again = self._rendered([*OPENING, probe, *OPENING[1:], probe], open_turn=True)
        thought = [{**OPENING[1], "content": f"<think>x</think>{PLACEHOLDER}"}]
        thinking = self._rendered([*OPENING[:1], *thought], open_turn=False)
        later = self._rendered([*OPENING[:1], *thought, probe], open_turn=True)
        closed, closing = self._closed
        spoken = thinking[: thinking.rfind(closing)]
        if not (text.startswith(closed) and again.startswith(text) and later.startswith(spoken)):
            raise UserError(
                "the chat template renders an earlier turn differently once another follows, and in"
                " an episode the policy sees what it sampled; set model.chat_template to one that"
                f" leaves earlier turns as they are (seen with a message of role {role!r})"
            )
        self._shown.add(role)

    def _rendered(self, chat: Sequence[Message], *, open_turn: bool) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(chat),
                    tools=[dict(tool) for tool in self.tools] or None,
                    tokenize=False,
                    add_generation_prompt=open_turn,
                )
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in chat)
            raise UserError(
                f"the chat template refuses an episode of the roles {roles}: {error}; set"
                " model.chat_template to one that takes them"
            ) from None

    def check(self) -> None:
        """Raise UserError where the template cannot carry an episode: the dry run's question."""
        self._check_role("tool" if self.tools else "user")


def harmless(text: str, tokenizer: "ChatTokenizer") -> str:
    """Return ``text`` with no special token, which could open or end a turn: each loses its first
    character."""
    tokens = special_tokens(tokenizer)
    while found := next((token for token in tokens if token in text), None):
        text = text.replace(found, found[1:])
    return text
