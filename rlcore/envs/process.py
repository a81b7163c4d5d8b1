"""The environments of many episodes in a child process that can be killed."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from rlcore.cluster.progress import advance
from rlcore.envs.registry import SERVER_ENDED
from rlcore.envs.types import Answer, Call, Start, Step
from rlcore.rewards.link import Child, ChildCalls, ChildEnded, Flight, environment_of
from schemas.environment import MCP, EnvironmentSection
from schemas.errors import UserError

_CHILD = "rlcore.envs.child"
_TOOLS_S = 60.0
_GRACE_S = 1.0  # the child ends a step itself; one that blocks the child is ended with it
_AT_ONCE = 256  # demonstrations that are asked for together
ATTEMPTS = 3  # of a call: the first, and two with a fresh environment


@dataclass(slots=True)
class _Known:
    """An episode as this side knows it: ``past``, what happened in it as (call, answer), and the
    child that has its state, if any."""

    past: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    holder: Child | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Flight(Flight):
    """A call of an episode's environment."""

    call: Call
    do: dict[str, Any]
    failures: int = 0


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
        self._late_in: Child | None = None  # a step that is late may still run in a thread of it
        self._role = ""
        self._calls = ChildCalls[_Flight](self._start)

    def exchange(self, calls: Sequence[Call], least: int, wait_s: float = math.inf) -> list[Answer]:
        """Begin ``calls``; return what is answered, once that is at least ``least`` calls, or all
        under way, or after about ``wait_s`` seconds.

        Raises RuntimeError when no child stays alive.
        """
        under_way, waiting = self._calls.under_way, self._calls.waiting
        waiting += [self._flight(call) for call in calls]
        answers: list[Answer] = []
        until = time.monotonic() + wait_s
        while under_way or waiting:
            while self._calls.may_begin(self._section.concurrency):
                self._begin(waiting.popleft())
            ended = self._calls.next(until if len(answers) < least else 0.0)
            arrived = [] if ended is None else self._answered(*ended)
            answers += arrived
            if not arrived and (len(answers) >= least or time.monotonic() >= until):
                break
        # A thread cannot be ended and the child can: once nothing else is under way in it.
        if self._late_in is self._calls.child and not under_way:
            self._calls.end_child()
        return answers

    def end(self, episodes: Sequence[str]) -> None:
        """Forget ``episodes``."""
        child = self._calls.child
        held = [name for name in episodes if self._known.pop(name, _Known()).holder is child]
        if held and child is not None:
            with suppress(ChildEnded):  # found at the next call
                child.send({"ended": held})

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

    def tools(self, *, build: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return the JSON schemas of the tools, for the chat template; none of a game.

        Raises UserError for tools that no policy could be told of; ``build``: where none is built.
        """
        return tuple(self._asked(_TOOLS_S, tools={"build": build}))

    def _asked(self, limit_s: float, **question: Any) -> Any:
        """Return what the child says of its class; no episode is under way.

        Raises UserError with what the class says instead, or where it says nothing in ``limit_s``.
        """
        asked = f"environment.name = {self._section.name!r}: its {' or '.join(question)}"
        self._calls.ready()
        self._calls.begin(_Flight(call=Call(""), do=question), question, limit_s)
        ended = self._calls.next()
        assert ended is not None, "it is alone under way"
        _, said = ended
        if "said" in said:
            return said["said"]
        if "late" in said:
            why = f"{asked} took over {limit_s:g} s; make it faster, or raise environment.timeout_s"
        elif "ended" in said:
            why = f"{asked} ended the process ({said['ended']}); call it in a shell to see why"
        elif (why := said["error"].removeprefix("UserError: ")) == said["error"]:
            why = f"{asked} failed ({why}); correct it, or list what it reads in environment.env"
        self.close()
        raise UserError(why)

    def close(self) -> None:
        """End the child."""
        self._calls.end_child()

    def _start(self) -> Child:
        section = self._section
        setup = {
            "name": section.name,
            "options": {**section.options, **_of_section(section)},
            "timeout_s": section.timeout_s,
            "threads": section.concurrency,
            "memory_bytes": int(section.memory_gib * 2**30) if section.memory_gib else None,
            "memory_key": "environment.memory_gib",
        }
        what = f"environment {section.name}"
        child, answer = Child.started(setup, self._environment, _CHILD, what=what)
        self._role = answer["role"]
        return child

    def _flight(self, call: Call) -> _Flight:
        if call.text is None:
            self._known[call.episode] = _Known()
            return _Flight(call=call, do={"row": dict(call.row or {}), "seed": call.seed})
        return _Flight(call=call, do={"text": call.text})

    def _begin(self, flight: _Flight) -> None:
        """Hand a call to the child, with the past of an episode that it does not hold."""
        child, known = self._calls.ready(), self._known[flight.call.episode]
        message: dict[str, Any] = {"episode": flight.call.episode, "do": flight.do}
        replayed = 0
        if known.holder is not child:
            message["past"] = known.past
            # The child does again what happened and checks each answer; the policy is not asked.
            known.holder, replayed = child, len(known.past)
        # Each call that is done again may take as long as one.
        self._calls.begin(flight, message, self._section.timeout_s * (1 + replayed) + _GRACE_S)

    def _answered(self, flight: _Flight, said: Mapping[str, Any]) -> list[Answer]:
        """Return the answer to a call that the child answered, or was to blame for its end; none
        where it is tried again."""
        known, call = self._known[flight.call.episode], flight.call
        advance()
        if "said" in said:
            # Only what was answered has happened; a call that failed or was late is not done again.
            known.past.append((flight.do, said["said"]))
            if call.text is None:
                return [Answer(call.episode, start=Start(**said["said"]))]
            return [Answer(call.episode, step=Step(**said["said"]))]
        child, known.holder = known.holder, None
        if "ended" in said:
            ending = said["ended"]
            served = self._section.name == MCP and ending == f"exit code {SERVER_ENDED}"
            why = "its MCP server ended" if served else f"its process died ({ending})"
        elif "late" in said:
            self._late_in, why = child, f"no result within {self._section.timeout_s:g} s"
            if call.text is not None:  # told to the policy; a reset has nobody to tell
                messages = [{"role": self._role, "content": f"error: {why}"}]
                return [Answer(call.episode, step=Step(messages))]
            why = f"reset(): {why}"
        else:
            why = said["error"]
        flight.failures += 1
        if flight.failures < ATTEMPTS:  # on a fresh environment
            self._calls.again_alone([flight])
            return []
        advance(f"environment {self._section.name} lost an episode: {why}")
        return [Answer(call.episode, failure=why)]


def tools_of(section: EnvironmentSection, *, build: bool = False) -> Sequence[Mapping[str, Any]]:
    """Return the JSON schemas of the tools of ``section``'s environment, from a separate process;
    ``build``: which must be able to build one.

    Raises UserError as ``EnvironmentProcess`` does.
    """
    with closing(EnvironmentProcess(section)) as process:
        return process.tools(build=build)


def _of_section(section: EnvironmentSection) -> dict[str, Any]:
    """Return the options that an environment of ours reads of the section."""
    if section.name == "python":
        return {"timeout_s": section.timeout_s}
    return {"command": section.command} if section.name == MCP else {}
