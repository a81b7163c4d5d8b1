"""Sampling ahead of training (``rl.rollout.max_staleness`` S > 0): a thread to which the engines
belong draws the rows of the next iterations while learners train on those before.

Nothing is a race. The rows of iteration i are drawn from the policy after iteration i - 1 - S (that
which RL began with, before there is one), in batches that time does not change, and are trained on
in iteration i. So the bound holds for each row by construction, and delays change when something
happens and never what. The peers bound what is admitted or drop what came too late, and none of
their runs can be repeated (verl, docs/advance/fully_async.md; AReaL#602).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Condition, Thread
from typing import Any

from rlcore.cluster.spans import Span
from rlcore.rl.batch import Round
from rlcore.rl.drawing import Drawing
from rlcore.rl.groups import DrawnGroups
from rlcore.rl.metrics import AHEAD, TIMING, StepMetrics
from rlcore.rl.state import Draw, LoopState
from rlcore.rl.sync import CANARY_GAP, Canary, Offered, load_offered
from schemas.errors import UserError


class SamplingStopped(UserError):
    """The run has ended, and what was sampled ahead of it is no longer wanted."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The rounds of an iteration, (rollouts, rewards) each, the metrics of drawing them, and when
    thread and engines were busy with it since the one before."""

    rounds: tuple[Round, ...]
    metrics: dict[str, float]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class _Offer:
    weights: Offered
    then: Callable[[], Any] | None  # is called once the engines hold these weights
    answer: "Future[Any]" = field(default_factory=Future)


class Ahead:
    """Draws iterations in their order, each from the policy that it is due to.

    Example:
        with ahead.running():
            ahead.begin(state, offers)          # offers: policies that are to sample, by iteration
            drawn = ahead.wait(state.next_iteration)
            ...                                 # train on it
            ahead.offer(iteration, weights)
    """

    def __init__(self, drawing: Drawing, canary: Canary) -> None:
        """``drawing``: that of the run, of which the thread has records and metrics apart."""
        self._drawing = replace(
            drawing,
            records=replace(drawing.records, fence=self._unless_stopped),
            metrics=StepMetrics(AHEAD),
        )
        self._canary = canary
        self._rl = drawing.recipe.rl
        self._changed = Condition()
        self._offers: dict[int, _Offer] = {}  # by iteration
        self._drawn: dict[int, Drawn] = {}
        self._error: BaseException | None = None
        self._stopped = False
        self._thread: Thread | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let nothing be sampled or recorded after the context.

        A round that is under way is waited for, unless the context ends with an exception.
        """
        try:
            yield
        except BaseException:
            self._stop()
            raise
        self._stop()
        if self._thread is not None:
            self._thread.join()

    def begin(self, state: LoopState, offers: dict[int, Offered]) -> None:
        """Draw what follows ``state``. ``offers``: its policy and those of ``state.behind``."""
        if state.finished(self._rl):
            return
        self._offers = {iteration: _Offer(weights, None) for iteration, weights in offers.items()}
        # A daemon: an engine that does not answer must not hold up a process that ends.
        self._thread = Thread(target=self._run, args=[state], name="sampling", daemon=True)
        self._thread.start()

    def offer(
        self, iteration: int, weights: Offered, then: Callable[[], Any] | None = None
    ) -> "Future[Any]":
        """Have the policy after ``iteration`` loaded once its turn comes; return what ``then``
        answers, which is called when the engines hold it."""
        offer = _Offer(weights, then)
        with self._changed:
            self._raise_error()
            self._offers[iteration] = offer
            self._changed.notify_all()
        return offer.answer

    def wait(self, iteration: int) -> Drawn:
        """Return what was drawn for ``iteration``. Raises the error that sampling ended with."""
        with self._changed:
            self._changed.wait_for(lambda: iteration in self._drawn or self._error is not None)
            if iteration not in self._drawn:
                self._raise_error()
            self._drawn = {each: drawn for each, drawn in self._drawn.items() if each >= iteration}
            return self._drawn[iteration]

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _stop(self) -> None:
        with self._changed:  # under which records are written: none is cut short, no other begins
            self._stopped = True
            self._changed.notify_all()

    @contextmanager
    def _unless_stopped(self) -> Iterator[None]:
        with self._changed:
            if self._stopped:
                raise SamplingStopped("the run has ended; what was sampled ahead is not recorded")
            yield

    def _run(self, state: LoopState) -> None:
        try:
            self._draw_all(state)
        except BaseException as error:  # noqa: BLE001  raised where the run waits for it
            with self._changed:
                self._error = error
                for offer in self._offers.values():
                    offer.answer.set_exception(error)
                self._changed.notify_all()

    def _draw_all(self, state: LoopState) -> None:
        number, cursor, last = state.iteration, state.cursor, self._rl.iterations
        for sampler in count(state.draw.sampler):
            offer = self._offered(sampler)
            if offer is None:
                return
            timed = self._drawing.metrics.timed
            with timed("sync"):
                gap = load_offered(offer.weights, self._drawing.workers.engines, self._canary)
            if offer.then is not None:
                with timed("testing"):
                    answer = offer.then()
                offer.answer.set_result(answer)
            with self._changed:
                del self._offers[sampler]
            while number < min(last, sampler + 1 + self._rl.rollout.max_staleness):
                number += 1
                draw = Draw(number, cursor, sampler, offer.weights.published.stamp)
                cursor += self._draw(draw, gap)
            if sampler == last:
                return

    def _offered(self, iteration: int) -> _Offer | None:
        """Return the policy after ``iteration`` once it is there; None where the run ends."""
        with self._changed:
            self._changed.wait_for(lambda: iteration in self._offers or self._stopped)
            return None if self._stopped else self._offers[iteration]

    def _draw(self, draw: Draw, gap: float) -> int:
        """Draw an iteration; return the places of the prompt stream that it used."""
        drawing = self._drawing
        drawing.records.forget()
        groups = DrawnGroups(wanted=self._rl.rollout.prompts)
        while not groups.full:
            rollouts = drawing.rollout(draw, groups)
            rewards = drawing.reward(rollouts)
            groups = drawing.collect(draw, groups, rollouts, rewards)
        took = {f"{name}_ahead": seconds for name, seconds in drawing.metrics.taken().items()}
        assert all(name.startswith(TIMING) for name in took), "drawing measures time alone"
        spans = *drawing.metrics.spans.taken(), *drawing.workers.engines.taken_spans()
        with self._changed:
            self._drawn[draw.iteration] = Drawn(groups.rounds, {CANARY_GAP: gap, **took}, spans)
            self._changed.notify_all()
        return groups.drawn
