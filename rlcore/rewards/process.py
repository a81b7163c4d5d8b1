"""The parent's side of a reward function in a child process that can be killed: time limits,
restarts, and which row is to blame. A bad row loses only its own score."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlcore.cluster.progress import advance
from rlcore.recipes.redaction import redact
from rlcore.rewards.link import Child, ChildEnded
from rlcore.rewards.types import Kind, Reward, RewardRow, groups_of
from schemas.errors import UserError
from schemas.names import portable_name
from schemas.outcomes import Outcome
from schemas.rl import RewardFunction

CHILD = "rlcore.rewards.child"
LOOK_S = 15.0
# Of the first call in a process, beside the limit of its row: a function may load a model there.
LOAD_S = 15.0
RECYCLE_ROWS = 10_000  # functions leak: from here on another process takes the next call
# Rows that a child has and has not answered; those beyond the socket's buffer would block both.
_AHEAD_ROWS = 512
_AHEAD_CHARACTERS = 50_000
_GRACE_S = 1.0  # a coroutine ends its row itself; one that blocks the loop is killed


@dataclass(frozen=True, slots=True)
class _Unit:
    """What the function is given in one call, by index; ``alone``: with nothing beside it."""

    rows: tuple[int, ...]
    alone: bool = False


class FunctionProcess:
    """Runs one reward function in a child process; not thread-safe.

    A row that exceeds its time limit, kills the process or exhausts its memory is marked, the
    process is restarted, and the rows after it are scored as usual. Where several rows were under
    way (a coroutine's, a batch), each of them is tried again alone.
    """

    def __init__(
        self,
        function: RewardFunction,
        *,
        options: Mapping[str, Any],
        path: str,
        memory_gib: float | None,
        environment: Mapping[str, str],
    ) -> None:
        """Start the child process; ``path``: where the recipe names the function; ``options``: its
        own, and what a built-in function reads of the section.

        Raises UserError when the function cannot be loaded.
        """
        self.name = function.name
        self._setup = {
            "name": function.name,
            "options": dict(options),
            "path": path,
            "batch": function.batch,
            "memory_bytes": int(memory_gib * 2**30) if memory_gib else None,
        }
        self._what = portable_name(function.name)
        self._batch, self._concurrency = function.batch, function.concurrency
        self._environment = environment
        self._lost = 0  # consecutive lost rows
        self._load_s = LOAD_S  # less once it is known what loading takes
        self._is_async = self._closed = False
        self._child: Child | None = self._start()

    @property
    def kind(self) -> Kind:
        """How the function is given rows."""
        return "groups" if self._batch else "awaited" if self._is_async else "rows"

    def score(self, rows: Sequence[RewardRow], timeout_s: float) -> list[Reward]:
        """Return the function's reward for each row, in order; ``timeout_s``: seconds of one call,
        for one row, or for one prompt's rows where it is a batch function.

        Raises RuntimeError when no child process stays alive.
        """
        if self._child is not None and self._child.rows_scored >= RECYCLE_ROWS:
            self._end_child()
        waiting = deque(
            _Unit(tuple(indices))
            for indices in (groups_of(rows) if self._batch else ([i] for i in range(len(rows))))
        )
        rewards: dict[int, Reward] = {}
        while waiting:
            suspects = self._score_some(rows, waiting, rewards, timeout_s)
            waiting.extendleft(_Unit((index,), alone=True) for index in reversed(suspects))
        return [rewards[index] for index in range(len(rows))]

    def close(self) -> None:
        """End the child process; none is started any more."""
        self._closed = True
        self._end_child()

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _ready_child(self) -> Child:
        if self._closed:
            raise RuntimeError(f"the process of reward function {self.name} is closed")
        if self._child is None:
            self._child = self._start()
        return self._child

    def _start(self) -> Child:
        what = f"reward function {self.name}"
        child, answer = Child.started(self._setup, self._environment, CHILD, what=what)
        self._is_async = answer["async"]
        return child

    def _score_some(
        self,
        rows: Sequence[RewardRow],
        waiting: deque[_Unit],
        rewards: dict[int, Reward],
        timeout_s: float,
    ) -> list[int]:
        """Score units of ``waiting`` until all are done or a row ends the child.

        Return the rows that are still without a reward and may have ended it."""
        child, flight = self._ready_child(), _Flight()
        row_s, loads = timeout_s, child.rows_scored == 0
        if loads:
            timeout_s += self._load_s
        try:
            while True:
                if waiting and (units := self._next(rows, waiting, flight, child)):
                    calls = [[[i, *_fields(rows[i])] for i in unit.rows] for unit in units]
                    child.send({"calls": calls, "timeout_s": timeout_s})
                    flight.begin(waiting.popleft() for _ in units)
                if not flight.units:
                    return []
                index, *values = child.receive(flight.left_s(timeout_s, each=self._is_async))
                if index not in flight.rows:
                    raise RuntimeError(f"the reward process answered row {index}, not asked for")
                rewards[index] = self._answered(rows[index], values)
                if loads:
                    self._load_s = min(LOAD_S, 2 * flight.silence_s())
                    timeout_s, loads = row_s, False
                child.rows_scored += 1
                flight.answered(index)
        except TimeoutError:
            self._end_child()
            # what a restarted process may take is little where loading took little
            beside = f" and {timeout_s - row_s:.3g} s for loading" if timeout_s > row_s + 1 else ""
            if loads and self._load_s == LOAD_S:
                self._load_s = 0.0  # it hangs, and that must not take as long for each row
            late = f"no score of {self._what} within {row_s:g} s{beside}"
            lost = Outcome.TIMEOUT, f"{late}; its process was killed"
        except ChildEnded:
            self._child = None
            lost = Outcome.ERROR, f"the process of {self._what} died in this row ({child.ending()})"
        # In one call after the other the first is under way; coroutines all are.
        suspects, innocent = flight.split(at_once=self._is_async)
        waiting.extendleft(reversed(innocent))
        if len(suspects) == 1:
            (index,) = suspects
            rewards[index] = self._lost_row(rows[index], *lost, seconds=flight.silence_s())
            return []
        return suspects

    def _next(
        self, rows: Sequence[RewardRow], waiting: Sequence[_Unit], flight: "_Flight", child: Child
    ) -> list[_Unit]:
        """Return the first units of ``waiting`` that the child can be given now."""
        if any(unit.alone for unit in flight.units):
            return []
        loads = child.rows_scored == 0  # its first row has time for that, and those beside it not
        if self._is_async and loads and flight.units:
            return []
        at_once = self._concurrency if self._is_async else 1 if self._batch else _AHEAD_ROWS
        at_once = 1 if self._is_async and loads else at_once
        given, characters = list(flight.rows), sum(_size(rows[i]) for i in flight.rows)
        units: list[_Unit] = []
        for unit in waiting:
            if given and (len(flight.units) + len(units) >= at_once or unit.alone):
                break
            characters += sum(_size(rows[i]) for i in unit.rows)
            if given and characters > _AHEAD_CHARACTERS:
                break
            units.append(unit)
            given += unit.rows
            if unit.alone:
                break
        return units

    def _answered(self, row: RewardRow, values: list[Any]) -> Reward:
        reward = _reward(row, values)
        if reward.outcome == Outcome.TIMEOUT:  # a coroutine's, whose process lives on
            self._lost += 1
            reward = replace(reward, detail=f"{self._what}: {reward.detail}")
            advance(self._noted(reward.detail))
        else:
            self._lost = 0
            advance()
        return reward

    def _lost_row(self, row: RewardRow, outcome: str, detail: str, *, seconds: float) -> Reward:
        self._lost += 1
        advance(self._noted(detail))
        return Reward(row.trajectory_id, outcome, None, detail=detail, seconds=seconds)

    def _noted(self, detail: str) -> str:
        """Return a note about the row just lost; of many consecutive ones only some get a note."""
        match self._lost:
            case 1:
                return f"{self.name} lost a row: {detail}"
            case 3:
                return f"{self.name} lost 3 rows in a row: {detail}"
        return ""


class _Flight:
    """The units that a child has been given and has not answered, oldest first."""

    def __init__(self) -> None:
        self.units: dict[_Unit, float] = {}  # by when they were sent
        self.rows: dict[int, _Unit] = {}  # without an answer
        self._heard_s = time.perf_counter()

    def begin(self, units: Iterable[_Unit]) -> None:
        """Note that ``units`` were sent."""
        now = time.perf_counter()
        if not self.units:
            self._heard_s = now
        for unit in units:
            self.units[unit] = now
            self.rows.update(dict.fromkeys(unit.rows, unit))

    def answered(self, index: int) -> None:
        """Note the answer on row ``index``."""
        self._heard_s = time.perf_counter()
        unit = self.rows.pop(index)
        if self.rows.keys().isdisjoint(unit.rows):
            del self.units[unit]

    def left_s(self, timeout_s: float, *, each: bool) -> float:
        """Return the seconds in which an answer is due; ``each``: every unit has its own limit,
        which the child keeps, and not the time since the last answer."""
        due = min(self.units.values()) + _GRACE_S if each else self._heard_s
        return max(0.0, due + timeout_s - time.perf_counter())

    def silence_s(self) -> float:
        """Return the seconds since the last answer."""
        return time.perf_counter() - self._heard_s

    def split(self, *, at_once: bool) -> tuple[list[int], list[_Unit]]:
        """Return the rows that may have ended the child, and the units that cannot have."""
        units = list(self.units)
        suspected = units if at_once else units[:1]
        suspects = [index for unit in suspected for index in unit.rows if index in self.rows]
        return suspects, units[len(suspected) :]


def _size(row: RewardRow) -> int:
    """Return about how many characters the row takes in a message."""
    said = sum(len(turn["content"]) for turn in row.turns)
    return 200 + len(row.response) + len(row.prompt or "") + len(row.ground_truth or "") + said


def look_at_functions(
    functions: Sequence[Mapping[str, Any]], *, environment: Mapping[str, str]
) -> None:
    """Load functions of the user, each in a child process, and call none of them.

    Each has ``name``, ``options``, ``path`` (where the recipe names it), ``loader``
    ("package.module:function", called with these three), ``memory_bytes`` (the address space it
    will get, or None) and ``limit_s`` (None: ``LOOK_S`` seconds). Raises UserError with what the
    loader says, or when the import raises, ends its process or exceeds the limit.
    """
    for function in functions:
        where, limit_s = f"{function['path']} = {function['name']!r}", function["limit_s"] or LOOK_S
        child = Child.spawn(environment, CHILD)
        try:
            child.send({"look_at": dict(function)})
            refused = child.receive(limit_s)["refused"]
        except TimeoutError:
            refused = (
                f"{where} was not imported within {limit_s:g} s; import heavy packages inside the"
                " function, and run nothing at module level"
            )
        except ChildEnded:
            refused = (
                f"{where}: the process that imported its module ended ({child.ending()}); import"
                " nothing that ends Python, and run nothing at module level"
            )
        finally:
            child.kill()
        if refused:
            raise UserError(refused)


def _fields(row: RewardRow) -> list[Any]:
    return [
        row.trajectory_id,
        row.data_source,
        row.response,
        row.ground_truth,
        dict(row.extra_info),
        row.finish_reason,
        row.num_tokens,
        row.prompt,
        row.group,
        row.style,
        list(row.turns),
    ]


def _reward(row: RewardRow, values: list[Any]) -> Reward:
    outcome, score, correct, parts, detail, seconds, answer = values
    return Reward(
        row.trajectory_id,
        outcome,
        score,
        correct=correct,
        parts=parts,
        detail=redact(detail),
        seconds=seconds,
        answer=answer,
    )
