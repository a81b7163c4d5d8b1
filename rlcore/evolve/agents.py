"""How the agents are asked: all of a round at once, again where their answer cannot be read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rlcore.algorithms.seeds import stream_seed
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Sampling
from rlcore.evolve.prompts import AgentPrompts, Row
from rlcore.rewards.boxed import last_boxed
from rlcore.rollout.episodes import Episodes, collect, in_order
from rlcore.rollout.trajectories import Request, Trajectory
from schemas.errors import UserError
from schemas.evolve import CLOSE, EvolveSection
from schemas.outcomes import FinishReason

OPEN = "<answer>"
_BOX = "\\boxed"


@dataclass(frozen=True, slots=True)
class VerifierVerdict:
    """What a verifier says of a solution: its ``report``, and ``accepts`` 0 or 1."""

    report: str
    accepts: int


def answer_in(text: str, form: str, reason: FinishReason) -> str | None:
    """Return the answer that the last turn ``text`` of the policy gives.

    ``form`` "tag": the text ends with ``<answer>...</answer>``, which holds something. "text": the
    policy ended the text by itself (``reason``), and it is the answer.

    >>> answer_in("6 * 7 <answer> 42 </answer>", "tag", FinishReason.STOP)
    '42'
    """
    text = text.strip()
    if form == "text":
        return text if text and reason == FinishReason.STOP else None
    if not text.endswith(CLOSE):
        return None
    _, opened, answer = text.removesuffix(CLOSE).rpartition(OPEN)
    if not opened or CLOSE in answer:
        return None
    return answer.strip() or None


def verdict_in(text: str) -> VerifierVerdict | None:
    r"""Return the verdict of a verifier's ``text``: its last ``\boxed{0}`` or ``\boxed{1}``, and
    the report before it.

    >>> verdict_in("The sum is wrong. \\boxed{0}")
    VerifierVerdict(report='The sum is wrong.', accepts=0)
    """
    report, box, rest = text.rpartition(_BOX)
    value = last_boxed(box + rest) if box else None
    return VerifierVerdict(report.strip(), int(value)) if value in ("0", "1") else None


T = TypeVar("T")
POLICY, INDEPENDENT, VERIFIER = "policy", "independent", "verifier"


@dataclass(frozen=True, slots=True)
class Ask:
    """One question: ``row`` is its prompt, ``names`` its agent and number, which name its seed."""

    row: Row
    names: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """What came of a question: the last ``trajectory``, its ``value`` (None where it could not be
    read) and the number of ``attempts``."""

    trajectory: Trajectory
    value: T | None
    attempts: int


@dataclass(frozen=True, slots=True)
class Agents:
    """Policy and verifiers: one model, sampled with two temperatures.

    ``stop_ids``: what ends a turn of the model (``stop_tokens``). ``episodes``: how the policy's
    turns are answered; None where it has one turn. ``seed``: the recipe's. A question's seed is a
    function of it, the question's names, its problem and how often it was asked: of no other
    question.
    """

    section: EvolveSection
    seed: int
    engines: EnginePool
    tokenizer: Any
    stop_ids: tuple[int, ...]
    prompts: AgentPrompts
    episodes: Episodes | None = None

    def answers(self, asks: Sequence[Ask]) -> list[Reply[str]]:
        """Return the policy's reply to each of ``asks``. Raises UserError where the environment
        failed in all episodes."""

        section = self.section

        def read(trajectory: Trajectory) -> str | None:
            return answer_in(trajectory.text, section.answer, trajectory.last.finish_reason)

        sampling = self._sampling(section.temperature, section.stop)
        replies = self._asked(asks, read, sampling, self.episodes)
        failures = [r.trajectory.failure for r in replies if r.trajectory.failure]
        if failures and len(failures) == len(replies):
            raise UserError(
                f"the environment failed in all {len(replies)} episodes: {failures[0]}; correct it,"
                " or set environment to null"
            )
        return replies

    def verdicts(self, asks: Sequence[Ask]) -> list[Reply[VerifierVerdict]]:
        """Return a verifier's reply to each of ``asks``."""
        sampling = self._sampling(self.section.verifier_temperature)
        return self._asked(asks, lambda one: verdict_in(one.text), sampling, None)

    def _sampling(self, temperature: float, stop: tuple[str, ...] = ()) -> Sampling:
        return Sampling(
            temperature=temperature,
            max_new_tokens=self.section.max_new_tokens,
            stop_token_ids=self.stop_ids,
            stop=stop,
        )

    def _asked(
        self,
        asks: Sequence[Ask],
        read: Callable[[Trajectory], T | None],
        sampling: Sampling,
        episodes: Episodes | None,
    ) -> list[Reply[T]]:
        """Ask, and ask those again that could not be read, at most ``format_retries`` times."""
        replies: dict[int, Reply[T]] = {}
        for retry in range(self.section.format_retries + 1):
            open_asks = [
                i for i in range(len(asks)) if i not in replies or replies[i].value is None
            ]
            if not open_asks:
                break
            requests = [self._request(asks[i], retry) for i in open_asks]
            sampled = collect(requests, sampling, self.engines, self.tokenizer, episodes)
            for i, trajectory in zip(open_asks, in_order(requests, sampled), strict=True):
                # Where engine or environment ended the episode, it says nothing.
                aborted = trajectory.last.finish_reason == FinishReason.ABORT
                value = None if trajectory.failure or aborted else read(trajectory)
                replies[i] = Reply(trajectory, value, retry + 1)
        return [replies[i] for i in range(len(asks))]

    def _request(self, ask: Ask, retry: int) -> Request:
        uid = ask.row["uid"]
        name = "-".join(map(str, (uid, *ask.names, retry)))
        seed = stream_seed(self.seed, "evolve", *ask.names, uid, retry)
        return Request(name, ask.row, retry, seed)
