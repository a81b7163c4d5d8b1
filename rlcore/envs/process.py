"""The environments of many episodes in a child process that can be killed."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from rlcore.cluster.progress import advance
from rlcore.envs.registry import SERVER_ENDED
from rlcore.envs.types import Answer, Call, Start, Step
from rlcore.rewards.link import Child, ChildEnded, environment_of
from schemas.environment import MCP, EnvironmentSection
from schemas.errors import UserError

_CHILD = "rlcore.envs.child"
_TOOLS_S = 60.0
_GRACE_S = 1.0  # the child ends a step itself; one that blocks the child is ended with it
_AT_ONCE = 256  # demonstrations that are asked for together
ATTEMPTS = 3  # of a call: the first, and two with a fresh environment


@dataclass(slots=True)
class _Known:
    """An episode as this side knows it: ``past``, what happened in it as (call, answer)."""

    past: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    is_held: bool = False  # by the child that runs now


@dataclass(slots=True)
class _Flight:
    """A call that is under way, and when the child must have answered."""

    call: Call
    do: dict[str, Any]
    failures: int = 0
    is_alone: bool = False  # nothing else may be under way
    due: float = 0.0


class EnvironmentProcess:
    """Runs an environment per episode in one child process; not thread-safe.

    A child that dies takes the state of its episodes with it. Each is made again in the next child
    by doing again what happened in it, checked answer by answer, so that no token is sampled twice.
    A call that fails, or was alone under way when the child died, is made twice more, each time on
    a fresh environment; then it is answered with a failure. A step that exceeds its time is
    answered with that, and has not happened.
    """

    def __init__(self, section: EnvironmentSection) -> None:
        """Start the child. Raises UserError when the environment cannot be built, or a variable of
        ``section.env`` is not set."""
        self._section = section
        self._environment = environment_of(section.env, "environment.env")
        self._known: dict[str, _Known] = {}
        self._flights: dict[int, _Flight] = {}
        self._waiting: deque[_Flight] = deque()
        self._number = 0
        self._is_late = False  # a step that is late may still run in a thread of the child
        self._role = ""
        self._child: Child | None = None
        self._ready()

    def exchange(self, calls: Sequence[Call], least: int, wait_s: float = math.inf) -> list[Answer]:
        """Begin ``calls``; return what is answered, once that is at least ``least`` calls, or all
        under way, or after about ``wait_s`` seconds.

        Raises RuntimeError when no child stays alive.
        """
        self._waiting += [self._flight(call) for call in calls]
        answers: list[Answer] = []
        until = time.monotonic() + wait_s
        while self._flights or self._waiting:
            self._begin()
            arrived = self._next(until if len(answers) < least else 0.0)
            answers += arrived
            if not arrived and (len(answers) >= least or time.monotonic() >= until):
                break
        # A thread cannot be ended and the child can: once nothing else is under way in it.
        if self._is_late and not self._flights:
            self.close()
            self._forget_child()
        return answers

    def end(self, episodes: Sequence[str]) -> None:
        """Forget ``episodes``."""
        held = [name for name in episodes if self._known.pop(name, _Known()).is_held]
        if held and self._child is not None:
            with suppress(ChildEnded):  # found at the next call
                self._child.send({"ended": held})

    def demonstrations(self, seeds: Sequence[int]) -> list[list[dict[str, str]]]:
        """Return the environment's own example for each of ``seeds``, as messages.

        Raises UserError where it makes none, or one fails.
        """
        examples: list[list[dict[str, str]]] = []
        for start in range(0, len(seeds), _AT_ONCE):
            part = list(seeds[start : start + _AT_ONCE])
            limit_s = len(part) * self._section.timeout_s + _GRACE_S
            examples += self._asked(limit_s, demonstrations=part)
        return examples

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the JSON schemas of the tools, for the chat template; none of a game.

        Raises UserError for tools that no policy could be told of.
        """
        return tuple(self._asked(_TOOLS_S, tools=True))

    def _asked(self, limit_s: float, **question: Any) -> Any:
        """Return what the child says of its class; no episode is under way.

        Raises UserError with what the class says instead, or where it says nothing in ``limit_s``.
        """
        child = self._ready()
        asked = f"environment.name = {self._section.name!r}: its {' or '.join(question)}"
        try:
            child.send({"calls": [{"number": -1, "episode": "", **question}]})
            said = child.receive(limit_s)
            if "said" in said:
                return said["said"]
            why = said.get("error", "").removeprefix("UserError: ")
        except TimeoutError:
            why = f"{asked} took over {limit_s:g} s; make it faster, or raise environment.timeout_s"
        except ChildEnded:
            why = f"{asked} ended the process ({child.ending()}); call it in a shell to see why"
        self.close()
        raise UserError(why)

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _ready(self) -> Child:
        if self._child is None:
            self._child, self._role = _started(self._section, self._environment)
        return self._child

    def _flight(self, call: Call) -> _Flight:
        if call.text is None:
            self._known[call.episode] = _Known()
            return _Flight(call, {"row": dict(call.row or {}), "seed": call.seed})
        return _Flight(call, {"text": call.text})

    def _begin(self) -> None:
        """Hand waiting calls to the child: as many as may be under way, or one that is to be
        alone."""
        while self._waiting and len(self._flights) < self._section.concurrency:
            alone = self._waiting[0].is_alone or any(f.is_alone for f in self._flights.values())
            if alone and self._flights:
                return
            self._send(self._waiting.popleft())

    def _send(self, flight: _Flight) -> None:
        """Hand a call to the child, with the past of an episode that it does not hold."""
        child = self._ready()
        self._number += 1
        known = self._known[flight.call.episode]
        message = {"number": self._number, "episode": flight.call.episode, "do": flight.do}
        replayed = 0
        if not known.is_held:
            message["past"] = known.past
            # The child does again what happened and checks each answer; the policy is not asked.
            known.is_held, replayed = True, len(known.past)
        # Each call that is done again may take as long as one.
        flight.due = time.monotonic() + self._section.timeout_s * (1 + replayed) + _GRACE_S
        self._flights[self._number] = flight
        with suppress(ChildEnded):  # found when its answer is read
            child.send({"calls": [message]})

    def _next(self, until: float) -> list[Answer]:
        """Return the answers that the child's next message makes; none where it ended instead, or
        says nothing ``until`` then."""
        child = self._ready()
        due = min(flight.due for flight in self._flights.values())
        try:
            said = child.receive(max(0.0, min(due, until) - time.monotonic()))
        except TimeoutError:
            return self._blocked(child) if time.monotonic() >= due else []
        except ChildEnded:
            return self._child_ended(child)
        flight = self._flights.pop(said.pop("number"))
        advance()
        return self._answered(flight, said)

    def _answered(self, flight: _Flight, said: Mapping[str, Any]) -> list[Answer]:
        known = self._known[flight.call.episode]
        if "said" in said:
            # Only what was answered has happened; a call that failed or was late is not done again.
            known.past.append((flight.do, said["said"]))
            return [_answer(flight.call, said["said"])]
        known.is_held = False
        if "timeout" in said:
            return self._late(flight)
        return self._failed(flight, said["error"])

    def _failed(self, flight: _Flight, why: str) -> list[Answer]:
        """Try the call again on a fresh environment, or give its episode up."""
        flight.failures += 1
        if flight.failures < ATTEMPTS:
            self._try_alone([flight])
            return []
        advance(f"environment {self._section.name} lost an episode: {why}")
        return [Answer(flight.call.episode, failure=why)]

    def _late(self, flight: _Flight) -> list[Answer]:
        """Tell the policy that its call took too long; a reset has nobody to tell."""
        why = f"no result within {self._section.timeout_s:g} s"
        self._is_late = True
        if flight.call.text is None:
            return self._failed(flight, f"reset(): {why}")
        messages = [{"role": self._role, "content": f"error: {why}"}]
        return [Answer(flight.call.episode, step=Step(messages))]

    def _blocked(self, child: Child) -> list[Answer]:
        """End a child that does not answer; of several calls one may have kept the others from
        being answered."""
        child.kill()
        return self._lost(self._late)

    def _child_ended(self, child: Child) -> list[Answer]:
        ending = child.ending()
        served = self._section.name == MCP and ending == f"exit code {SERVER_ENDED}"
        why = "its MCP server ended" if served else f"its process died ({ending})"
        return self._lost(lambda flight: self._failed(flight, why))

    def _lost(self, blame: Callable[[_Flight], list[Answer]]) -> list[Answer]:
        """Return what ``blame`` makes of the call that was alone under way in a child that is gone;
        several are tried again, each alone, since any of them may be to blame."""
        flights = self._forget_child()
        if len(flights) == 1:
            return blame(flights[0])
        self._try_alone(flights)
        return []

    def _try_alone(self, flights: Sequence[_Flight]) -> None:
        for flight in flights:
            flight.is_alone = True
        # In front and in order: they are older than all that waits.
        self._waiting.extendleft(reversed(flights))

    def _forget_child(self) -> list[_Flight]:
        """Note that the child is gone; return the calls that were under way in it."""
        flights = list(self._flights.values())
        self._child, self._is_late = None, False
        self._flights.clear()
        for known in self._known.values():
            known.is_held = False
        return flights


def tools_of(section: EnvironmentSection) -> Sequence[Mapping[str, Any]]:
    """Return the JSON schemas of the tools of ``section``'s environment, from a separate process.

    Raises UserError as ``EnvironmentProcess`` does.
    """
    with closing(EnvironmentProcess(section)) as process:
        return process.tools()


def _started(section: EnvironmentSection, environment: Mapping[str, str]) -> tuple[Child, str]:
    """Return a child that holds the environment of ``section``, and the role it answers in."""
    setup = {
        "name": section.name,
        "options": {**section.options, **_of_section(section)},
        "timeout_s": section.timeout_s,
        "threads": section.concurrency,
        "memory_bytes": int(section.memory_gib * 2**30) if section.memory_gib else None,
        "memory_key": "environment.memory_gib",
    }
    child, answer = Child.started(setup, environment, _CHILD, what=f"environment {section.name}")
    return child, answer["role"]


def _answer(call: Call, said: Mapping[str, Any]) -> Answer:
    if call.text is None:
        return Answer(call.episode, start=Start(**said))
    return Answer(call.episode, step=Step(**said))


def _of_section(section: EnvironmentSection) -> dict[str, Any]:
    """Return the options that an environment of ours reads of the section."""
    if section.name == "python":
        return {"timeout_s": section.timeout_s}
    return {"command": section.command} if section.name == MCP else {}
