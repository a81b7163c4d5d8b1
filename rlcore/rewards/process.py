"""The parent's side of a reward function in a child process that can be killed: time limits,
restarts, and which row is to blame. A bad row loses only its own score."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from rlcore.cluster.progress import advance
from rlcore.recipes.redaction import redact
from rlcore.rewards.link import Child, ChildEnded
from rlcore.rewards.registry import specs_of
from rlcore.rewards.types import Kind, Reward, RewardRow, groups_of
from schemas.errors import UserError
from schemas.names import portable_name
from schemas.outcomes import Outcome
from schemas.rl import RewardSection

FORMAT = "format"  # the built-in reward
CHILD = "rlcore.rewards.child"
LOOK_S = 15.0
# Of the first call in a process, beside the limit of its row: a function may load a model there.
LOAD_S = 15.0
RECYCLE_ROWS = 10_000  # functions leak: from here on another process takes the next call
_GRACE_S = 1.0  # a coroutine ends its row itself; one that blocks the loop is killed
_AHEAD_CHARACTERS = 50_000  # of rows without an answer; beyond the socket's buffer both would block
# What a child is sent of a row, in the order of its fields.
_sent = attrgetter(
    *("trajectory_id", "data_source", "response", "ground_truth", "extra_info", "finish_reason"),
    *("num_tokens", "prompt", "group", "style", "turns"),
)


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

    def __init__(self, section: RewardSection, index: int, environment: Mapping[str, str]) -> None:
        """Start the child process of ``section.functions[index]``, with the variables of
        ``environment``.

        Raises UserError when the function cannot be loaded.
        """
        function, (name, _, options) = section.functions[index], specs_of(section)[index]
        self.name = name
        self._setup = {
            "name": name,
            "options": dict(options),
            "path": f"reward.functions[{index}]",
            "batch": function.batch,
            "memory_bytes": int(section.memory_gib * 2**30) if section.memory_gib else None,
        }
        self._what = portable_name(name)
        # Nothing else takes `format` time.
        pattern = str(options.get("pattern"))[:80] if name == FORMAT else ""
        self._pattern = f" (its pattern {pattern!r} backtracks)" if pattern else ""
        self._batch, self._concurrency = function.batch, function.concurrency
        self._environment = environment
        self._loses = False  # the latest row was lost
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
        calls = groups_of(rows) if self._batch else [[index] for index in range(len(rows))]
        waiting = deque(_Unit(tuple(indices)) for indices in calls)
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

        Return the rows that are still without a reward and may have ended it.
        """
        child, alone = self._ready_child(), False
        since: dict[int, float] = {}  # row without an answer -> when its time began, oldest first
        row_s, loads = timeout_s, child.rows_scored == 0
        grace_s = _GRACE_S if self._is_async else 0.0
        if loads:
            timeout_s += self._load_s
        try:
            while waiting or since:
                while waiting and self._takes(waiting[0], rows, since, alone=alone or loads):
                    call = [[index, *_sent(rows[index])] for index in waiting[0].rows]
                    child.send({"call": call, "timeout_s": timeout_s})
                    unit = waiting.popleft()
                    since |= dict.fromkeys(unit.rows, time.perf_counter())
                    alone = unit.alone
                left_s = timeout_s + grace_s - _waited_s(since)
                index, *values = child.receive(max(0.0, left_s))
                if index not in since:
                    raise RuntimeError(f"the reward process answered row {index}, not asked for")
                rewards[index] = self._answered(rows[index], values)
                if loads:
                    self._load_s = min(LOAD_S, 2 * _waited_s(since))
                    timeout_s, loads = row_s, False
                child.rows_scored += 1
                del since[index]
                if self._batch:  # its next row has a limit of its own
                    since = dict.fromkeys(since, time.perf_counter())
            return []
        except TimeoutError:
            self._end_child()
            # what a restarted process may take is little where loading took little
            beside = f" and {timeout_s - row_s:.3g} s for loading" if timeout_s > row_s + 1 else ""
            if loads and self._load_s == LOAD_S:
                self._load_s = 0.0  # it hangs, and that must not take as long for each row
            late = f"no score of {self._what}{self._pattern} within {row_s:g} s{beside}"
            outcome, detail = Outcome.TIMEOUT, f"{late}; its process was killed"
        except ChildEnded:
            self._child = None
            outcome = Outcome.ERROR
            detail = f"the process of {self._what} died in this row ({child.ending()})"
        if len(since) != 1:
            return list(since)
        (index,), seconds = since, _waited_s(since)
        self._note_loss(detail)
        rewards[index] = Reward(
            rows[index].trajectory_id, outcome, None, detail=detail, seconds=seconds
        )
        return []

    def _takes(
        self, unit: _Unit, rows: Sequence[RewardRow], since: Mapping[int, float], *, alone: bool
    ) -> bool:
        """Return whether the child can be given ``unit`` now: one call after the other, but
        coroutines side by side, once the first has loaded what all need."""
        if not since:
            return True
        if not self._is_async or alone or unit.alone:
            return False
        characters = sum(_size(rows[index]) for index in (*since, *unit.rows))
        return len(since) < self._concurrency and characters <= _AHEAD_CHARACTERS

    def _answered(self, row: RewardRow, values: list[Any]) -> Reward:
        outcome, score, correct, parts, detail, seconds, answer = values
        reward = Reward(
            row.trajectory_id,
            outcome,
            score,
            correct=correct,
            parts=parts,
            detail=redact(detail),
            seconds=seconds,
            answer=answer,
        )
        if reward.outcome == Outcome.TIMEOUT:  # a coroutine's, whose process lives on
            reward = replace(reward, detail=f"{self._what}: {reward.detail}")
            self._note_loss(reward.detail)
        else:
            self._loses = False
            advance()
        return reward

    def _note_loss(self, detail: str) -> None:
        """Report progress, and the first of consecutive rows that are lost."""
        advance("" if self._loses else f"{self.name} lost a row: {detail}")
        self._loses = True


def _waited_s(since: Mapping[int, float]) -> float:
    """Return the seconds that a row of ``since`` has waited for its answer at most."""
    return time.perf_counter() - next(iter(since.values()))


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
        setup = {"look_at": dict(function)}
        try:
            child, _ = Child.started(setup, environment, CHILD, what=where, limit_s=limit_s)
        except RuntimeError as error:
            raise UserError(
                f"{error}; import nothing that ends Python, and run nothing at module level"
            ) from None
        child.kill()
