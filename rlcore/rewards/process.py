"""The parent's side of a reward function in a child process that can be killed: time limits,
restarts, and which row is to blame. A bad row loses only its own score."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlcore.cluster.progress import advance
from rlcore.recipes.redaction import redact
from rlcore.rewards.link import Child, ChildCalls, Flight
from rlcore.rewards.registry import build, specs_of
from rlcore.rewards.types import FUNCTION_FIELDS, Kind, Reward, RewardRow, groups_of
from schemas.errors import UserError
from schemas.names import portable_name
from schemas.outcomes import Outcome
from schemas.rl import RewardSection

CHILD = "rlcore.rewards.child"
LOOK_S = 15.0
# Of the first call in a process, beside the limit of its row: a function may load a model there.
LOAD_S = 15.0
RECYCLE_ROWS = 10_000  # functions leak: from here on another process takes the next call
_GRACE_S = 1.0  # a coroutine ends its row itself; one that blocks the loop is killed


@dataclass(slots=True, kw_only=True, eq=False)
class _Unit(Flight):
    """What the function is given in one call, by index; ``timeout_s`` is extended by ``load_s`` in
    a process's first."""

    rows: tuple[int, ...]
    timeout_s: float
    load_s: float = 0.0


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
            "loader": f"{build.__module__}:{build.__name__}",
            "memory_bytes": int(section.memory_gib * 2**30) if section.memory_gib else None,
        }
        self._what = portable_name(name)
        # Nothing else takes `format` time.
        pattern = str(options.get("pattern"))[:80] if name == "format" else ""
        self._pattern = f" (its pattern {pattern!r} backtracks)" if pattern else ""
        self._batch, self._concurrency = function.batch, function.concurrency
        self._environment = environment
        self._loses = False  # the latest row was lost
        self._load_s = LOAD_S  # less once it is known what loading takes
        self._is_async = self._closed = False
        self._rows_scored = 0  # by the child that runs now
        self._calls = ChildCalls[_Unit](self._start)

    @property
    def kind(self) -> Kind:
        """How the function is given rows."""
        return "groups" if self._batch else "awaited" if self._is_async else "rows"

    def score(self, rows: Sequence[RewardRow], timeout_s: float) -> list[Reward]:
        """Return the function's reward for each row, in order; ``timeout_s``: seconds of one call,
        for one row, or for one prompt's rows where it is a batch function.

        Raises RuntimeError when no child process stays alive.
        """
        if self._rows_scored >= RECYCLE_ROWS or self._calls.under_way:
            self._calls.end_child()
        units = groups_of(rows) if self._batch else [[index] for index in range(len(rows))]
        self._calls.waiting = deque(_Unit(rows=tuple(each), timeout_s=timeout_s) for each in units)
        rewards: dict[int, Reward] = {}
        while self._calls.waiting or self._calls.under_way:
            # Coroutines side by side, once the first has loaded what all need.
            several = self._is_async and self._rows_scored > 0
            while self._calls.may_begin(self._concurrency if several else 1):
                self._begin(rows)
            if (ended := self._calls.next()) is not None:
                rewards |= self._rewards(*ended, rows)
        return [rewards[index] for index in range(len(rows))]

    def close(self) -> None:
        """End the child process; none is started any more."""
        self._closed = True
        self._calls.end_child()

    def _start(self) -> Child:
        if self._closed:
            raise RuntimeError(f"the process of reward function {self.name} is closed")
        what = f"reward function {self.name}"
        child, answer = Child.started(self._setup, self._environment, CHILD, what=what)
        self._is_async, self._rows_scored = answer["async"], 0
        return child

    def _begin(self, rows: Sequence[RewardRow]) -> None:
        unit = self._calls.waiting.popleft()
        self._calls.ready()  # the count of its rows tells whether it has loaded
        unit.load_s = 0.0 if self._rows_scored else self._load_s
        limit_s = unit.timeout_s + unit.load_s
        message = {
            "rows": [[*vars(rows[index]).values()] for index in unit.rows],
            "timeout_s": limit_s,
        }
        self._calls.begin(unit, message, limit_s + (_GRACE_S if self._is_async else 0.0))

    def _rewards(
        self, unit: _Unit, said: Mapping[str, Any], rows: Sequence[RewardRow]
    ) -> dict[int, Reward]:
        """Return the rewards of ``unit`` by index; none of several rows whose process is gone,
        which are tried again."""
        seconds = time.monotonic() - unit.began
        if "rewards" in said:
            if not self._rows_scored:
                self._load_s = min(LOAD_S, 2 * seconds)
            self._rows_scored += len(unit.rows)
            pairs = zip(unit.rows, said["rewards"], strict=True)
            return {index: self._answered(_reward(rows[index], told)) for index, told in pairs}
        if "late" in said and unit.load_s == LOAD_S:
            self._load_s = 0.0  # it hangs, and that must not take as long for each row
        index, *others = unit.rows
        if others:
            alone = [_Unit(rows=(each,), timeout_s=unit.timeout_s) for each in unit.rows]
            self._calls.again_alone(alone)
            return {}
        if "late" in said:
            # what a restarted process may take is little where loading took little
            beside = f" and {unit.load_s:.3g} s for loading" if unit.load_s > 1 else ""
            late = f"no score of {self._what}{self._pattern} within {unit.timeout_s:g} s{beside}"
            outcome, detail = Outcome.TIMEOUT, f"{late}; its process was killed"
        else:
            outcome = Outcome.ERROR
            detail = f"the process of {self._what} died in this row ({said['ended']})"
        self._note_loss(detail)
        return {index: Reward.lost(rows[index], detail, outcome, seconds=seconds)}

    def _answered(self, reward: Reward) -> Reward:
        detail = redact(reward.detail)
        if reward.outcome == Outcome.TIMEOUT:  # a coroutine's, whose process lives on
            detail = f"{self._what}: {detail}"
            self._note_loss(detail)
        else:
            self._loses = False
            advance()
        return replace(reward, detail=detail)

    def _note_loss(self, detail: str) -> None:
        """Report progress, and the first of consecutive rows that are lost."""
        advance("" if self._loses else f"{self.name} lost a row: {detail}")
        self._loses = True


def _reward(row: RewardRow, told: Mapping[str, Any]) -> Reward:
    """Return what the child, which runs the user's code, told of ``row``, and no more."""
    return Reward(row.trajectory_id, **{name: told[name] for name in FUNCTION_FIELDS})


def look_at_functions(
    functions: Sequence[Mapping[str, Any]], *, environment: Mapping[str, str]
) -> None:
    """Load functions of the user, each in a child process, and call none of them.

    Each has ``name``, ``options``, ``path`` (where the recipe names it), ``batch``, ``loader``
    ("package.module:function", called with these four), ``memory_bytes`` (the address space it
    will get, or None) and ``limit_s`` (None: ``LOOK_S`` seconds). Raises UserError with what the
    loader says, or when the import raises, ends its process or exceeds the limit.
    """
    for function in functions:
        where, limit_s = f"{function['path']} = {function['name']!r}", function["limit_s"] or LOOK_S
        try:
            child, _ = Child.started(function, environment, CHILD, what=where, limit_s=limit_s)
        except RuntimeError as error:
            raise UserError(
                f"{error}; import nothing that ends Python, and run nothing at module level"
            ) from None
        child.kill()
