"""Plain Python functions as the run's reward: called in this process, on the caller's event loop.

Rows are scored as reward functions of a recipe are (``rlcore.rewards.registry``): a number, a dict
with ``score``, or None; a row that fails is marked and never scored 0. What differs: there is no
process to kill, so only an awaited result can be timed out.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rlcore.rewards.calls import AsyncFunction
from rlcore.rewards.registry import reward_of
from rlcore.rewards.types import Reward, RewardRow
from schemas.errors import UserError
from schemas.outcomes import Outcome

CONCURRENT = 64  # awaited rows in progress at once
DETAIL_CHARACTERS = 500


class FunctionScorers:
    """Scores rows by ``reward_fn(prompt, response)``, correct according to ``verifier_fn``.

    Both may be coroutine functions. Without ``verifier_fn`` a row is correct when its reward says
    so (``acc``), else when the reward exceeds ``threshold``. ``score`` must not be called from the
    thread of ``loop``.
    """

    def __init__(
        self,
        reward_fn: Callable[[str, str], Any],
        verifier_fn: Callable[[str, str], Any] | None,
        *,
        threshold: float,
        timeout_s: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Raise UserError for a function that does not take (prompt, response)."""
        check_signature(reward_fn, "reward_fn")
        if verifier_fn is not None:
            check_signature(verifier_fn, "verifier_fn")
        self._reward_fn, self._verifier_fn = reward_fn, verifier_fn
        self._threshold, self._timeout_s, self._loop = threshold, timeout_s, loop

    def start(self, row: RewardRow) -> None:
        """Begin nothing: the functions run in the caller's event loop, between its other work."""

    def score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        """Return one reward per row, in order; awaited rows run concurrently."""
        return asyncio.run_coroutine_threadsafe(self._score(rows), self._loop).result()

    async def _score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        room, function = asyncio.Semaphore(CONCURRENT), AsyncFunction(self._judged)

        async def one(row: RewardRow) -> Reward:
            async with room:
                reward = await function.result(row, self._timeout_s)
            answer = None if reward.answer is None else _whole(reward.answer)
            detail = _whole(reward.detail)
            if reward.score is None:
                detail = detail[:DETAIL_CHARACTERS]
            return replace(reward, answer=answer, detail=detail)

        return await asyncio.gather(*(one(row) for row in rows))

    async def _judged(self, row: RewardRow) -> Reward:
        assert row.prompt is not None, "rows of the loop carry their prompt's text"
        reward = reward_of(row, await _result(self._reward_fn(row.prompt, row.response)))
        if reward.score is None:
            return reward
        correct = reward.correct
        if self._verifier_fn is not None:
            verdict = await _result(self._verifier_fn(row.prompt, row.response))
            if verdict is None:
                return Reward.lost(row, "verifier_fn returned None")
            correct = bool(verdict)
        elif correct is None:
            correct = reward.score > self._threshold
        return replace(reward, correct=correct, outcome=Outcome.OK if correct else Outcome.WRONG)


def check_signature(function: Any, name: str) -> None:
    """Raise UserError unless ``function`` can be called as (prompt, response)."""
    if not callable(function):
        raise UserError(f"{name} = {function!r} is not callable; give a function")
    try:
        inspect.signature(function).bind("prompt", "response")
    except TypeError:
        raise UserError(
            f"{name} has the signature {inspect.signature(function)} and is called with two"
            " arguments, prompt and response; change it"
        ) from None
    except ValueError:  # a built-in without a signature: the first call shows whether it works
        return


def _whole(text: str) -> str:
    """Return ``text`` without halves of characters, as ``rlcore.rewards.calls.as_line`` does."""
    return text.encode("utf-8", "replace").decode()


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
