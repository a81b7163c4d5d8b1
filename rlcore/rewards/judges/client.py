"""Asks a judge, or a reward model that is served, over HTTP: within its limits, again where that
can help, and once for each question.

Its limits hold over all processes: each slot is a lock on one byte of a file, which ends with its
process.
"""

import asyncio
import fcntl
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import openai
from openai.types.chat import ChatCompletion
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from rlcore.cluster.progress import advance
from rlcore.rewards.judges.cache import JudgeCache
from rlcore.rewards.judges.question import JudgeQuestion, verdict_lines
from rlcore.rewards.judges.setup import LONGEST_WAIT_S, JudgeSetup, key_of
from schemas.errors import UserError
from schemas.judges import Judge, JudgeLimits

_LOOK_S = 0.02
_PULSE_S = 1.0
_QUESTIONS = 2**20  # bytes from here on lock questions, those before it requests under way


class Locks:
    """The locks that share the file ``path``. Locks of one process do not exclude each other, so
    only one object per file and process may be in use."""

    def __init__(self, path: Path) -> None:
        """Open the file, making it and its folder where there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._taken: set[int] = set()

    def close(self) -> None:
        """Release all locks of this process."""
        os.close(self._file)

    def slot(self, count: int) -> AbstractAsyncContextManager[None]:
        """Wait for one of ``count`` slots that all processes share, and hold it."""
        return self._lock(range(count))

    def question(self, digest: str) -> AbstractAsyncContextManager[None]:
        """Wait until no other process asks the question of ``digest`` (hex), and keep others from
        asking it."""
        offset = _QUESTIONS + int(digest[:14], 16)
        return self._lock(range(offset, offset + 1))

    @asynccontextmanager
    async def _lock(self, offsets: range) -> AsyncIterator[None]:
        while (offset := self._take(offsets)) is None:
            await asyncio.sleep(_LOOK_S)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, offset)
            self._taken.discard(offset)

    def _take(self, offsets: range) -> int | None:
        for offset in offsets:
            if offset in self._taken:
                continue
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except (BlockingIOError, PermissionError):  # another process has it
                continue
            self._taken.add(offset)
            return offset
        return None


_BACKOFF = wait_random_exponential(multiplier=0.5, max=30.0)
_AGAIN = (408, 409, 429)  # besides 5xx
_ACCOUNT = "OPENAI_"  # variables of an account that need not be the judge's
_KEPT_CHARACTERS = 20_000  # of an answer: its end, where the verdict is
_SHOWN_CHARACTERS = 300  # of an error


class NoAnswer(Exception):
    """The server gave no answer; the message says why."""


Asked = tuple[str | NoAnswer, float]  # the answer, or why there is none; and seconds


class CallsSpent(UserError):
    """A run has made as many calls as its recipe allows."""


@dataclass(frozen=True, slots=True)
class Access:
    """What asking a server takes besides its address. ``run`` identifies the run whose calls are
    counted; ``key`` is the API key, None where the server needs none."""

    cache: JudgeCache
    locks: Locks
    run: str
    key: str | None

    def close(self) -> None:
        """Close both files."""
        self.cache.close()
        self.locks.close()


def access_to(setup: JudgeSetup, section: str, key_env: str | None, *, lock: str) -> Access:
    """Return the access to the server of the recipe's ``section``, whose slots are those of
    ``lock``. Raises UserError when its key is not in this process's environment."""
    key = key_of(section, key_env)
    return Access(JudgeCache(setup.cache), Locks(setup.folder / f"{lock}.lock"), setup.run, key)


class Client(ABC):
    """Asks one server under its limits, for one event loop; use as an async context manager.

    ``name``: of the server, in its errors ``kind`` NAME.
    """

    kind: ClassVar[str]
    answer: ClassVar[str]  # what it gives
    most: int  # answers that the run may pay for

    def __init__(self, name: str, url: str, limits: JudgeLimits, access: Access) -> None:
        self.name, self.limits = name, limits
        self.cache, self.locks = access.cache, access.locks
        self._run, self._key = access.run, access.key
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._sending: set[asyncio.Task[Any] | None] = set()
        self._stopped = False
        self._closed_until = 0.0  # monotonic: the server asked everyone to wait
        with _without_account():
            self._client = openai.AsyncOpenAI(
                base_url=url,
                api_key=access.key or "none",  # the library refuses an empty one
                max_retries=0,
                timeout=limits.timeout_s,
            )

    @abstractmethod
    async def _send(self, question: JudgeQuestion) -> str:
        """Send one request and return what is kept of its answer. Raises ValueError for an answer
        that holds none."""

    def _may_help(self, error: BaseException) -> bool:
        """Return whether to ask again after ``error``."""
        if isinstance(error, openai.APIStatusError):
            again = error.status_code in _AGAIN or error.status_code >= 500
            return again and _asked_s(error) <= LONGEST_WAIT_S
        return isinstance(error, TimeoutError | openai.APIConnectionError)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._client.close()

    def ask_all(self, questions: Iterable[JudgeQuestion]) -> dict[str, Asked]:
        """Return what came of each question, by its digest, in an event loop of its own; equal ones
        are one.

        Raises what ``ask`` raises besides NoAnswer. Then nothing more is sent; what is under way
        may be charged for, so its answer is awaited and kept.
        """
        return asyncio.run(self._ask_all({question.digest: question for question in questions}))

    async def _ask_all(self, new: dict[str, JudgeQuestion]) -> dict[str, Asked]:
        known = self.cache.find([*new])
        found: dict[str, Asked] = {digest: (answer, 0.0) for digest, answer in known.items()}
        failures: list[Exception] = []

        async def one(question: JudgeQuestion) -> None:
            began = time.perf_counter()
            try:
                answer = await self.ask(question)
            except NoAnswer as error:
                answer = error
            except Exception as error:  # noqa: BLE001 - raised below, once nothing is under way
                failures.append(error)
                self._stopped = True
                for task in tasks:
                    if task not in self._sending and task is not asyncio.current_task():
                        task.cancel()
                return
            found[question.digest] = answer, time.perf_counter() - began

        async with self:
            tasks = [asyncio.create_task(one(new[digest])) for digest in new if digest not in known]
            waiting = set(tasks)
            while waiting:
                advance()  # each wait in a question has its own limit
                _, waiting = await asyncio.wait(waiting, timeout=_PULSE_S)
        if failures:
            raise failures[0]
        return found

    async def ask(self, question: JudgeQuestion) -> str:
        """Return the answer to ``question``, from the cache where another worker has asked it.

        Raises NoAnswer when the server gives none, CallsSpent when the run may make no further
        call.
        """
        async with self._slots, self.locks.question(question.digest):
            if kept := self.cache.find([question.digest]):
                return kept[question.digest]
            attempts = AsyncRetrying(
                stop=stop_after_attempt(self.limits.retries + 1),
                wait=_wait_s,
                retry=retry_if_exception(lambda error: not self._stopped and self._may_help(error)),
                reraise=True,
            )
            try:
                answer = await attempts(self._attempt, question)
            except (openai.OpenAIError, TimeoutError, ValueError) as error:
                if isinstance(error, CallsSpent):
                    raise
                tries = attempts.statistics.get("attempt_number", 1)
                raise NoAnswer(self._without_key(self._failure(error, tries))) from None
            self.cache.keep([(question.digest, answer)])
            return answer

    async def _attempt(self, question: JudgeQuestion) -> str:
        """Send one request when the limits allow it; return the text of its answer."""
        limits = self.limits
        async with self.locks.slot(limits.concurrency):
            while (left_s := self._closed_until - time.monotonic()) > 0:
                await asyncio.sleep(left_s)
            if limits.requests_per_minute is not None:
                while wait_s := self.cache.send(self.name, per_minute=limits.requests_per_minute):
                    await asyncio.sleep(wait_s)
            if not self.cache.reserve(self._run, self.name, most=self.most):
                raise CallsSpent(
                    f"judges.{self.name}.max_calls = {self.most} is reached, and there"
                    " are rows to judge; raise it and rerun, which asks no answered question again"
                )
            self._sending.add(asyncio.current_task())
            try:
                async with asyncio.timeout(limits.timeout_s):
                    answer = await self._send(question)
            except openai.APIStatusError as error:
                self.cache.release(self._run, self.name)
                self._closed_until = max(
                    self._closed_until, time.monotonic() + min(_asked_s(error), LONGEST_WAIT_S)
                )
                raise
            except openai.APIConnectionError as error:
                # Nothing was sent. Which HTTP library has this error is the client's own matter.
                if type(error.__cause__).__name__ == "ConnectError":
                    self.cache.release(self._run, self.name)
                raise
            finally:
                self._sending.discard(asyncio.current_task())
        return self._without_key(answer)

    def _failure(self, error: BaseException, tries: int) -> str:
        name, limit = f"{self.kind} {self.name!r}", self.limits.timeout_s
        times = f" in each of {tries} attempts" if tries > 1 else ""
        if isinstance(error, TimeoutError | openai.APITimeoutError):
            return f"{name} did not answer within {limit:g} s{times}"
        if isinstance(error, openai.APIStatusError):
            text = f"{name} answered with status {error.status_code}{times}: {error.message}"
            if (asked_s := _asked_s(error)) > LONGEST_WAIT_S:
                text = f"{name} asks to wait {asked_s:.0f} s (status {error.status_code})"
            return text[:_SHOWN_CHARACTERS]
        if isinstance(error, openai.APIConnectionError):
            cause = error.__cause__ or error
            return f"no connection to {name}{times}: {type(cause).__name__}: {cause}"
        return f"{name} answered{times} with no {self.answer}: {error}"[:_SHOWN_CHARACTERS]

    def _without_key(self, text: str) -> str:
        """Return ``text``, which the server wrote and a store will hold, without the key."""
        return text.replace(self._key, "[key]") if self._key else text


class JudgeClient(Client):
    """One judge under its limits, as ``Client``."""

    kind, answer = "judge", "chat completion"

    def __init__(self, name: str, judge: Judge, access: Access) -> None:
        super().__init__(name, judge.url, judge.limits, access)
        self._judge, self.most = judge, judge.max_calls
        self._sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": judge.max_tokens}

    async def _send(self, question: JudgeQuestion) -> str:
        lines = verdict_lines(self._judge, question)
        extra = {"structured_outputs": {"choice": lines}} if self._judge.constrained else {}
        asked = partial(
            self._client.chat.completions.create,
            model=self._judge.model,
            messages=[{"role": "user", "content": question.text}],
            extra_body=extra,
        )
        try:
            completion = await asked(**self._sampling)
        except openai.BadRequestError as error:
            if "max_completion_tokens" not in str(error):
                raise
            # OpenAI's reasoning models take the other name, and no temperature.
            self._sampling = {"max_completion_tokens": self._judge.max_tokens}
            completion = await asked(**self._sampling)
        return _text_of(completion)


@contextmanager
def _without_account() -> Iterator[None]:
    """Hide the library's own variables, which it would send as headers to any URL."""
    hidden = {name: os.environ.pop(name) for name in tuple(os.environ) if name.startswith(_ACCOUNT)}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _text_of(completion: Any) -> str:
    """Return the text of an answer. Raises ValueError for what is no chat completion."""
    if not isinstance(completion, ChatCompletion):
        raise ValueError(repr(completion)[:_SHOWN_CHARACTERS])
    # The library does not validate what it parses.
    choices: Any = completion.choices
    first = choices[0] if isinstance(choices, list) and choices else None
    text = getattr(getattr(first, "message", None), "content", None)
    if not isinstance(text, str):
        raise ValueError("there is no text in it")
    return text.encode("utf-8", "replace").decode()[-_KEPT_CHARACTERS:]


def _wait_s(state: RetryCallState) -> float:
    """Return the seconds until the next attempt: what the server asked for, else growing ones."""
    error = state.outcome.exception() if state.outcome else None
    asked_s = _asked_s(error) if isinstance(error, openai.APIStatusError) else 0.0
    return asked_s or _BACKOFF(state)


def _asked_s(error: openai.APIStatusError) -> float:
    """Return the seconds of a Retry-After header, a number or a date; 0 without a sensible one."""
    text = error.response.headers.get("retry-after", "").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return 0.0
    return max(0.0, seconds) if seconds == seconds else 0.0
