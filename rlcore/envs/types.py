"""What an environment is, and what passes between it and an episode.

Your own environment is either of these, named in ``environment.name``:

- a class with ``reset(row, seed)`` and ``step(text)``, plain or ``async``: a game, a simulator;
- a class whose other public methods are tools, typed and documented, as TRL's
  ``environment_factory`` takes it: ``reset(**row)`` prepares them, and the policy calls them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from schemas.errors import UserError

Message = Mapping[str, str]  # {"role", "content"}


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment makes of one turn of the policy.

    ``messages``: what it answers; none where the episode is over. ``reward``: credited to this
    turn's last token. ``valid``: whether it could read the turn.
    """

    messages: Sequence[Message] = ()
    reward: float = 0.0
    done: bool = False
    valid: bool = True


@dataclass(frozen=True, slots=True)
class Start:
    """What an environment begins with: the prompt's ``messages``, and what a reward function may
    compare an answer with. An environment whose prompts come from data has no messages."""

    messages: Sequence[Message] = ()
    ground_truth: str | None = None


class Environment(Protocol):
    """One episode's state. Both methods may be ``async``; equal arguments give equal answers."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Any:
        """Begin an episode of ``row``, a row of the Prompts table; return a Start, a list of
        messages, or None."""
        ...

    def step(self, text: str) -> Any:
        """Return the Step that answers ``text``, one turn of the policy, special tokens dropped."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A request to the environment of ``episode``: begin (``text`` None), or answer ``text``."""

    episode: str
    text: str | None = None
    row: Mapping[str, Any] | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The environment's answer to a Call: a Start, a Step, or why there is none."""

    episode: str
    start: Start | None = None
    step: Step | None = None
    failure: str = ""


def as_start(value: Any) -> Start:
    """Return what ``reset`` returned as a Start.

    Raises UserError unless it is a Start of texts, a text, a list of messages, or None.
    """
    if value is None:
        return Start()
    if isinstance(value, str):
        value = [{"role": "user", "content": value}] if value else []
    if isinstance(value, Start):
        if not isinstance(value.ground_truth, str | None):
            raise UserError(
                f"reset() returned the ground truth {value.ground_truth!r}, which is no text; give"
                " str() of it"
            )
        return Start(as_messages(value.messages, "reset"), value.ground_truth)
    return Start(as_messages(value, "reset"))


def as_step(value: Any) -> Step:
    """Return what ``step`` returned, checked. Raises UserError unless it is a Step of messages, a
    finite reward and two truth values."""
    if not isinstance(value, Step):
        raise UserError(f"step() returned {type(value).__name__}, not rlcore.envs.types.Step")
    reward = float(value.reward)
    if reward != reward or abs(reward) == float("inf"):
        raise UserError(f"step() returned the reward {value.reward}, which is not a finite number")
    return Step(as_messages(value.messages, "step"), reward, bool(value.done), bool(value.valid))


def as_messages(value: Any, method: str) -> list[Message]:
    """Return the messages that ``method`` returned. Raises UserError unless they are texts."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UserError(
            f"{method}() returned {str(value)[:80]!r} as messages; give a list of"
            ' {"role": ..., "content": ...}'
        )
    messages = []
    for message in value:
        texts = isinstance(message, Mapping) and (message.get("role"), message.get("content"))
        if not texts or not all(isinstance(text, str) for text in texts):
            raise UserError(
                f"{method}() returned {str(message)[:80]!r} as a message; give"
                ' {"role": ..., "content": ...} of texts'
            )
        messages.append({"role": message["role"], "content": message["content"]})
    return messages
