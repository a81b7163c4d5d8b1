"""All reward workers of a run, and its reward model, as one scorer."""

import queue
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlcore.cluster.types import Worker
from rlcore.learner.pool import LearnerPool
from rlcore.models.packing import Sequences
from rlcore.rewards.registry import combine
from rlcore.rewards.types import Reward, RewardRow, groups_of
from rlcore.rewards.unscored import check_unscored
from rlcore.rewards.worker import Parts
from schemas.names import REWARD_MODEL, portable_name
from schemas.outcomes import Outcome
from schemas.rl import RewardSection

CALL_S = 1.0  # the work of one call: what waits behind a slow row is little
MOST_ROWS = 64  # of one call


@dataclass(frozen=True, slots=True)
class _Unit:
    """Rows that one worker scores: one, or for batch functions all of a prompt."""

    rows: tuple[RewardRow, ...]
    batch: bool

    @property
    def keys(self) -> list[tuple[str, bool]]:
        """The names of its results."""
        return [(row.trajectory_id, self.batch) for row in self.rows]


class RewardPool:
    """Scores rows by reward workers that take them as they get free, and by the reward model.

    ``timeout_s`` bounds one call of a worker, in addition to the limits of its rows. ``model``
    (frozen, head "value") counts by the entry of ``section`` that names it; without one that entry
    is left out. Without workers the model alone is the reward, and there are no verdicts on
    correctness.

    A row handed over by ``start`` is scored while its caller samples the others; ``score`` then
    finds it done. Which worker scores a row, and when, is in no result: batch functions, whose
    results depend on what they are given together, get whole prompts, in ``score`` only.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        section: RewardSection,
        *,
        timeout_s: float,
        model: LearnerPool | None = None,
    ) -> None:
        self._section, self._timeout_s, self._model = section, timeout_s, model
        self._functions = [f for f in section.functions if f.name != REWARD_MODEL]
        named = next((f for f in section.functions if f.name == REWARD_MODEL), None)
        self._model_function = None if model is None else named
        self._calls = _Calls(workers, section, timeout_s) if self._functions else None

    def start(self, row: RewardRow) -> None:
        """Begin to score ``row``, which ``score`` will be asked for, and return at once."""
        if self._calls is not None and any(not f.batch for f in self._functions):
            self._calls.add([_Unit((replace(row, token_ids=None),), batch=False)])

    def score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        """Return one reward per row, in order.

        Raises RewardFailureError as soon as more rows are unscored than the recipe allows of all.
        """
        rewards = [self._combined(row, parts) for row, parts in self._parts(rows)]
        scored = [i for i, row in enumerate(rows) if self._is_for_model(row)]
        if scored:
            assert self._model is not None, "it has rows"
            assert self._model_function is not None, "it has rows"
            values = model_scores(self._model, [rows[i] for i in scored])
            for i, value in zip(scored, values.tolist(), strict=True):
                rewards[i] = add_model_score(rewards[i], value, self._model_function.weight)
        return [
            reward
            if reward.score is None
            else replace(reward, score=reward.score + self._section.offset)
            for reward in rewards
        ]

    def _parts(self, rows: Sequence[RewardRow]) -> list[tuple[RewardRow, Parts]]:
        bare = [replace(row, token_ids=None) for row in rows]
        if self._calls is None or not rows:
            return [(row, {}) for row in bare]
        ids = {row.trajectory_id for row in rows}
        assert len(ids) == len(rows), "results are found by the id of their row"
        units = []
        if any(not function.batch for function in self._functions):
            units += [_Unit((row,), batch=False) for row in bare]
        if any(function.batch for function in self._functions):
            groups = groups_of(bare)
            units += [_Unit(tuple(bare[i] for i in group), batch=True) for group in groups]
        found = self._calls.results(units, of=len(rows))
        return [
            (row, {**found.get((row.trajectory_id, False), {}), **found.get(key, {})})
            for row in bare
            if (key := (row.trajectory_id, True))
        ]

    def _combined(self, row: RewardRow, parts: Parts) -> Reward:
        if not parts:
            if self._is_for_model(row):
                return Reward(row.trajectory_id, Outcome.OK, 0.0)
            return Reward(
                row.trajectory_id,
                Outcome.ERROR,
                None,
                detail=f"no reward function scores data_source {row.data_source!r} with"
                f" reward_model.style {row.style!r}",
            )
        said = [
            (portable_name(function.name), function.weight, parts[index])
            for index, function in enumerate(self._functions)
            if index in parts
        ]
        seconds = sum(reward.seconds for reward in parts.values())
        return replace(combine(row, said), seconds=seconds)

    def _is_for_model(self, row: RewardRow) -> bool:
        function = self._model_function
        return function is not None and function.scores(row.data_source, row.style)


class _Calls:
    """Units that wait for a worker, are in one, or have results. A thread per busy worker."""

    def __init__(self, workers: Sequence[Worker], section: RewardSection, timeout_s: float) -> None:
        self._num_workers = len(workers)
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in workers:
            self._idle.put(worker)
        self._section = section
        functions = [f for f in section.functions if f.name != REWARD_MODEL]
        self._counts = [bool(function.weight) for function in functions]
        self._timeout_s = timeout_s
        self._row_s = CALL_S / 8  # of the latest rows, on average
        self._changed = threading.Condition()
        # All below is read and written with the lock of ``_changed`` held.
        self._waiting: deque[_Unit] = deque()
        self._begun: dict[tuple[str, bool], RewardRow] = {}
        self._done: dict[tuple[str, bool], Parts] = {}
        self._num_lost = self._busy = 0
        self._failure: BaseException | None = None

    def add(self, units: Sequence[_Unit]) -> None:
        """Let workers take ``units`` as they get free, but those under way or done already."""
        with self._changed:
            for unit in units:
                if all(
                    self._begun.get(key) == row
                    for key, row in zip(unit.keys, unit.rows, strict=True)
                ):
                    continue
                for key, row in zip(unit.keys, unit.rows, strict=True):
                    self._begun[key] = row
                    self._done.pop(key, None)
                self._waiting.append(unit)
            while self._busy < min(self._num_workers, self._busy + len(self._waiting)):
                self._busy += 1
                threading.Thread(target=self._work, name="rewards", daemon=True).start()

    def results(self, units: Sequence[_Unit], *, of: int) -> dict[tuple[str, bool], Parts]:
        """Return what workers say of the rows of ``units``, which are then forgotten.

        Raises what a worker raises, and RewardFailureError as ``RewardPool.score`` does.
        """
        self.add(units)
        keys = [key for unit in units for key in unit.keys]
        seen = 0
        with self._changed:
            try:
                while True:
                    if self._failure is not None:
                        failure, self._failure = self._failure, None
                        raise failure
                    if seen < self._num_lost:
                        seen = self._num_lost
                        self._check(keys, of)
                    if all(key in self._done for key in keys):
                        break
                    self._changed.wait()
            except BaseException:
                self._waiting.clear()
                self._begun.clear()
                self._done.clear()
                # A worker is not thread-safe, and its owner may use or close it next.
                self._changed.wait_for(lambda: not self._busy, 2 * self._section.timeout_s + 5)
                raise
            for key in keys:
                self._begun.pop(key, None)
            return {key: self._done.pop(key) for key in keys}

    def _check(self, keys: Sequence[tuple[str, bool]], of: int) -> None:
        lost = dict[str, tuple[str, str]]()
        scored = set[str]()
        for key in keys:
            if key in self._done:
                scored.add(key[0])
                for reward in self._lost(self._done[key]):
                    lost[key[0]] = reward.outcome, reward.detail
        fine = [(Outcome.OK.value, "")] * len(scored - lost.keys())
        check_unscored([*lost.values(), *fine], self._section, of=of)

    def _lost(self, parts: Parts) -> list[Reward]:
        return [r for index, r in parts.items() if r.score is None and self._counts[index]]

    def _work(self) -> None:
        """Score units in one worker until none waits."""
        worker = self._idle.get()
        try:
            while units := self._take():
                rows = [row for unit in units for row in unit.rows]
                limit_s = self._section.timeout_s
                # A batch that hangs is tried again row by row.
                calls = len(rows) * len(self._counts) * (2 if units[0].batch else 1)
                pending = worker.start("score", rows, limit_s, units[0].batch)
                parts = pending.result(self._timeout_s + calls * (limit_s + 1))
                self._record(units, parts)
        except BaseException as error:  # noqa: BLE001 - raised where the results are waited for
            with self._changed:
                self._failure = error
                self._busy -= 1
                self._changed.notify_all()
        finally:
            self._idle.put(worker)

    def _take(self) -> list[_Unit]:
        """Return the next units of one kind, about ``CALL_S`` of work; none ends the thread."""
        with self._changed:
            share = -(-len(self._waiting) // self._num_workers)
            most = max(1, min(MOST_ROWS, share, int(CALL_S / self._row_s)))
            units: list[_Unit] = []
            rows = 0
            while self._waiting and (not units or rows < most):
                if units and self._waiting[0].batch is not units[0].batch:
                    break
                units.append(self._waiting.popleft())
                rows += len(units[-1].rows)
            if not units:
                self._busy -= 1
            return units

    def _record(self, units: Sequence[_Unit], parts: Sequence[Parts]) -> None:
        keys = [(key, row) for unit in units for key, row in zip(unit.keys, unit.rows, strict=True)]
        with self._changed:
            for (key, row), said in zip(keys, parts, strict=True):
                if self._begun.get(key) != row:
                    continue  # given up meanwhile
                self._done[key] = said
                self._num_lost += bool(self._lost(said))
            seconds = sum(reward.seconds for said in parts for reward in said.values())
            self._row_s = max(1e-4, (self._row_s + seconds / len(keys)) / 2)
            self._changed.notify_all()


def model_scores(model: LearnerPool, rows: Sequence[RewardRow]) -> np.ndarray:
    """Return [rows] float64: the reward model's score at the last token of prompt + response."""
    token_ids = [np.asarray(row.token_ids, dtype=np.int32) for row in rows]
    sequences = Sequences(
        token_ids=token_ids,
        loss_mask=[np.zeros(len(ids), dtype=bool) for ids in token_ids],
    )
    values = model.values(sequences, targets="last")
    return np.array([value[-1] for value in values], dtype=np.float64)


def add_model_score(reward: Reward, value: float, weight: float) -> Reward:
    """Return ``reward`` with weight x value added to its score and listed as a part.

    A row that a function of weight other than 0 could not score stays without a score.
    """
    parts = {**reward.parts, REWARD_MODEL: value}
    score = None if reward.score is None else reward.score + weight * value
    return replace(reward, score=score, parts=parts)
