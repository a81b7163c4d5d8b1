"""All reward workers of a run, and its reward model, as one scorer: which worker gets which rows,
and the sum of what they give."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from rlcore.cluster.types import Worker
from rlcore.learner.pool import LearnerPool
from rlcore.models.packing import Sequences
from rlcore.rewards.process import LOAD_S
from rlcore.rewards.registry import combine
from rlcore.rewards.types import Failure, Kind, Reward, RewardRow, groups_of
from rlcore.rewards.unscored_rows import check_unscored
from rlcore.rewards.worker import Parts
from schemas.names import by_workers, is_model, term_name
from schemas.outcomes import Outcome
from schemas.reward_model import BroughtRewardModel
from schemas.rl import RewardFunction, RewardSection

# Rows of one call, after which it is seen whether too many have failed. Of those scored one after
# the other few: what waits behind a slow row is little.
MOST_ROWS = {"rows": 8, "groups": 8, "awaited": 64}


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """Rows that one worker scores by its functions of a kind: one, or all of a prompt."""

    rows: tuple[RewardRow, ...]
    kind: Kind
    said: Future[list[Parts]] = field(default_factory=Future[list[Parts]])  # of each row

    @property
    def key(self) -> tuple[Kind, tuple[str, ...]]:
        """The name of what is said of it."""
        return self.kind, tuple(row.trajectory_id for row in self.rows)


# What a reward model says each row is worth; why there is no score, for one that has none.
ModelScores = Callable[[Sequence[RewardRow]], list[float | str]]


# Ids of the policy mean nothing to a model of another tokenizer, so the model renders the messages
# itself (TRL hands over the policy's ids, and declines to change that: trl#1674, #3595).
def brought_scores(
    worker: Worker, model: BroughtRewardModel, timeout_s: float, rows: Sequence[RewardRow]
) -> list[float | str]:
    """Return what a ``Classifier`` in its worker, asked within ``timeout_s``, says of ``rows``."""
    conversations = [conversation(row, model.observations) for row in rows]
    return worker.start("score", conversations).result(timeout_s)


def own_scores(learner: LearnerPool, rows: Sequence[RewardRow]) -> list[float | str]:
    """Return what a model that this pipeline trained, frozen, head "value", says of ``rows`` at the
    last token of prompt + response."""
    token_ids = [np.asarray(row.token_ids, dtype=np.int32) for row in rows]
    loss_mask = [np.zeros(len(ids), dtype=bool) for ids in token_ids]
    values = learner.values(Sequences(token_ids, loss_mask), targets="last").result()
    return [float(value[-1]) for value in values]


def conversation(row: RewardRow, observations: bool) -> list[Mapping[str, str]]:
    """Return the messages of ``row``'s prompt and what followed: the policy's answer; of an episode
    the policy's turns as one, or with ``observations`` all turns."""
    if observations and row.turns:
        return [*row.messages, *row.turns]
    said = [turn["content"] for turn in row.turns if turn["role"] == "assistant"]
    answer = "\n".join(said) if said else row.response
    return [*row.messages, {"role": "assistant", "content": answer}]


class RewardPool:
    """Scores rows by reward workers that take them as they get free, and by reward models.

    ``timeout_s`` bounds one call of a worker, in addition to the limits of its rows. ``judges_s``:
    a bound on the seconds that judges take for a number of rows; None: there are none. ``models``:
    reward models by the name of their function; each counts by the entry of ``section`` that names
    it, which is left out without it. Without workers models alone are the reward, and there are no
    verdicts on correctness.

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
        judges_s: Callable[[int], float] | None = None,
        models: Mapping[str, ModelScores] | None = None,
    ) -> None:
        self._section = section
        self._functions = [f for f in section.functions if not is_model(f.name)]
        called = [f for f in self._functions if by_workers(f.name)]
        self._models = models or {}
        self._model_functions = [f for f in section.functions if f.name in self._models]
        self._calls = None
        if called:
            self._calls = _Calls(workers, section, timeout_s=timeout_s, judges_s=judges_s)

    def start(self, row: RewardRow) -> None:
        """Begin to score ``row``, which ``score`` will be asked for, and return at once."""
        if self._calls is not None:
            kinds = self._calls.kinds() - {"groups"}
            self._calls.add([_Unit((row,), kind) for kind in kinds])

    def score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        """Return one reward per row, in order.

        Raises RewardFailureError as soon as more rows are unscored than the recipe allows of all.
        """
        without = [self._combined(row, parts) for row, parts in self._parts(rows)]
        rewards = list(without)
        for function in self._model_functions:
            scored = [
                i for i, row in enumerate(rows) if function.scores(row.data_source, row.style)
            ]
            values = self._models[function.name]([rows[i] for i in scored]) if scored else []
            for i, value in zip(scored, values, strict=True):
                rewards[i] = add_model_score(rewards[i], function, value)
        if self._section.ensemble == "min":
            rewards = [self._with_least(*pair) for pair in zip(without, rewards, strict=True)]
        offset = self._section.offset
        return [
            reward
            if reward.score is None or not offset
            else replace(reward, score=reward.score + offset)
            for reward in rewards
        ]

    def _with_least(self, without: Reward, summed: Reward) -> Reward:
        """Return ``summed`` with the least that a model adds to ``without`` in place of the sum."""
        added = [
            function.weight * summed.parts[function.name]
            for function in self._model_functions
            if function.weight and function.name in summed.parts
        ]
        if without.score is None or summed.score is None or not added:
            return summed
        return replace(summed, score=without.score + min(added))

    def _parts(self, rows: Sequence[RewardRow]) -> list[tuple[RewardRow, Parts]]:
        if self._calls is None or not rows:
            return [(row, {}) for row in rows]
        ids = {row.trajectory_id for row in rows}
        assert len(ids) == len(rows), "results are found by the id of their row"
        kinds = self._calls.kinds()
        units = [_Unit((row,), kind) for kind in kinds - {"groups"} for row in rows]
        if "groups" in kinds:
            prompts = groups_of(rows)
            units += [_Unit(tuple(rows[i] for i in prompt), "groups") for prompt in prompts]
        found = self._calls.results(units, of=len(rows))
        return [(row, found[row.trajectory_id]) for row in rows]

    def _combined(self, row: RewardRow, parts: Parts) -> Reward:
        said = self._said(row, parts)
        if not said:
            if any(f.scores(row.data_source, row.style) for f in self._model_functions):
                return Reward.of(row, 0.0)
            return Reward.lost(
                row,
                f"no reward function scores data_source {row.data_source!r} with"
                f" reward_model.style {row.style!r}",
            )
        seconds = sum(reward.seconds for reward in parts.values())
        return replace(combine(row, said), seconds=seconds)

    def _said(self, row: RewardRow, parts: Parts) -> list[tuple[str, float, Reward]]:
        """Return (name, weight, reward) of the functions that score ``row``, in the recipe's
        order; ``parts`` are of those that workers call."""
        said = []
        for function in self._functions:
            name = term_name(function.name, function.options)
            reward = parts.get(name)
            if not by_workers(function.name) and function.scores(row.data_source, row.style):
                reward = environment_reward(row, function.options)
            if reward is not None:
                said.append((name, function.weight, reward))
        return said


class _Calls:
    """Units that wait for a worker, are in one, or have results. A thread per busy worker."""

    def __init__(
        self,
        workers: Sequence[Worker],
        section: RewardSection,
        *,
        timeout_s: float,
        judges_s: Callable[[int], float] | None,
    ) -> None:
        self._workers, self._section = workers, section
        self._kinds: frozenset[Kind] = frozenset()
        called = [f for f in section.functions if by_workers(f.name)]
        self._counts = {term_name(f.name, f.options): bool(f.weight) for f in called}
        self._timeout_s, self._judges_s = timeout_s, judges_s
        self._changed = threading.Condition()
        # All below is read and written with the lock of ``_changed`` held.
        self._idle = list(workers)
        self._waiting: dict[Kind, deque[_Unit]] = defaultdict(deque)
        self._begun: dict[Any, _Unit] = {}  # by key, until their results are asked for

    def kinds(self) -> frozenset[Kind]:
        """Return the kinds of functions there are. The first call waits for a worker's start."""
        if not self._kinds:
            self._kinds = frozenset(self._workers[0].start("kinds").result(self._timeout_s))
        return self._kinds

    def add(self, units: Sequence[_Unit]) -> None:
        """Let workers take ``units`` as they get free, but those under way or done already."""
        with self._changed:
            for unit in units:
                begun = self._begun.get(unit.key)
                if begun is None or begun.rows != unit.rows:
                    self._begun[unit.key] = unit
                    self._waiting[unit.kind].append(unit)
            waiting = sum(map(len, self._waiting.values()))
            for _ in range(min(len(self._idle), waiting)):
                args = (self._idle.pop(0),)
                threading.Thread(target=self._work, args=args, name="rewards", daemon=True).start()

    def results(self, units: Sequence[_Unit], *, of: int) -> dict[str, Parts]:
        """Return what workers say of the rows of ``units``, by id; it is then forgotten.

        Raises what a worker raises, and RewardFailureError as ``RewardPool.score`` does.
        """
        found: dict[str, Parts] = {}
        lost: dict[str, tuple[str, str]] = {}
        failures: list[BaseException] = []

        def take(said: Future[list[Parts]]) -> None:
            # In the worker's thread, before it takes further rows.
            with self._changed:
                unit = asked.pop(said)
                if failures:
                    return
                before = len(lost)
                try:
                    for row, parts in zip(unit.rows, said.result(), strict=True):
                        found.setdefault(row.trajectory_id, {}).update(parts)
                        for name, reward in parts.items():
                            if reward.score is None and self._counts[name]:
                                lost[row.trajectory_id] = reward.outcome, reward.detail
                    if len(lost) > before:
                        fine = [(Outcome.OK.value, "")] * (len(found) - len(lost))
                        check_unscored([*lost.values(), *fine], self._section, of=of)
                except BaseException as error:  # noqa: BLE001 - raised below
                    failures.append(error)
                    self._waiting.clear()
                self._changed.notify_all()

        with self._changed:
            self.add(units)
            asked = {self._begun[unit.key].said: unit for unit in units}
            for said in list(asked):
                said.add_done_callback(take)
            try:
                self._changed.wait_for(lambda: failures or not asked)
                if failures:
                    raise failures[0]
            except BaseException as error:
                failures.append(error)
                self._waiting.clear()
                self._begun.clear()
                # A worker is not thread-safe, and its owner may use or close it next.
                limit_s = 2 * self._section.timeout_s + 5
                self._changed.wait_for(lambda: len(self._idle) == len(self._workers), limit_s)
                raise
            for unit in units:
                del self._begun[unit.key]
            return found

    def _work(self, worker: Worker) -> None:
        """Score units in ``worker`` until none waits."""
        while units := self._take(worker):
            rows = [
                replace(row, token_ids=None, messages=()) for unit in units for row in unit.rows
            ]
            try:
                pending = worker.start("score", rows, self._section.timeout_s, units[0].kind)
                parts = iter(pending.result(self._limit_s(len(rows))))
                for unit, said in [(unit, list(islice(parts, len(unit.rows)))) for unit in units]:
                    unit.said.set_result(said)
            except BaseException as error:  # noqa: BLE001 - raised where the results are asked for
                for unit in units:
                    unit.said.set_exception(error)

    def _limit_s(self, rows: int) -> float:
        """Return the seconds that one call of a worker may take."""
        # What hangs among several rows is tried again row by row.
        calls = 2 * rows * len(self._counts)
        limit_s = self._timeout_s + calls * (self._section.timeout_s + 1)
        limit_s += 2 * LOAD_S * len(self._counts)
        if self._judges_s is not None:  # all workers share the judges' limits
            limit_s += self._judges_s(max(rows, len(self._begun)))
        return limit_s

    def _take(self, worker: Worker) -> list[_Unit]:
        """Return the next units of one kind for ``worker``, which is idle where there are none."""
        with self._changed:
            units: list[_Unit] = []
            if self._waiting:
                kind, waiting = max(self._waiting.items(), key=lambda item: len(item[1]))
                most = min(MOST_ROWS[kind], -(-len(waiting) // len(self._workers)))
                rows = 0
                while waiting and (not units or rows < most):
                    units.append(waiting.popleft())
                    rows += len(units[-1].rows)
            if not units:
                self._idle.append(worker)
                self._changed.notify_all()
            return units


def environment_reward(row: RewardRow, options: Mapping[str, Any]) -> Reward:
    """Return the sum of what the environment gave for the turns of ``row``.

    Option ``success_at``: the sum from which the episode counts as correct; without it there is no
    verdict.
    """
    score, success_at = float(sum(row.turn_rewards)), options.get("success_at")
    return Reward.of(row, score, None if success_at is None else score >= success_at)


def add_model_score(reward: Reward, function: RewardFunction, value: float | str) -> Reward:
    """Return ``reward`` with weight x value added to its score and listed as a part.

    A row that a function of weight other than 0 could not score stays without a score, and so does
    one that has a reason (str) in place of a value from a model of such a weight.
    """
    if isinstance(value, str):
        said = f"{function.name}: {value}"
        if not function.weight:
            failures = {**reward.failures, function.name: Failure(Outcome.ERROR, said)}
            return replace(reward, failures=failures)
        if reward.score is None:
            return reward
        return replace(reward, outcome=Outcome.ERROR, score=None, detail=said)
    parts = {**reward.parts, function.name: value}
    score = None if reward.score is None else reward.score + function.weight * value
    return replace(reward, score=score, parts=parts)
