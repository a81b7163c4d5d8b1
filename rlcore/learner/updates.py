"""Optimizer steps of one rank: single ones, and versioned updates of several."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from rlcore.learner.engine import TrainEngine
from rlcore.learner.passes import Accumulated, Passes, accumulate, apply
from rlcore.learner.report import StepReport, over_steps
from rlcore.learner.spec import Term, TokenScores, UpdateRequest, UpdateResult, VersionConflict
from rlcore.learner.state import load_state, save_state
from rlcore.learner.versions import Versions
from rlcore.learner.weights import LearnerWeights


class Updates:
    """Steps on ``engine``, whose ``weights`` they change, counted in ``versions``. Every method is
    collective."""

    def __init__(self, engine: TrainEngine, passes: Passes, weights: LearnerWeights) -> None:
        self._engine, self._passes, self._weights = engine, passes, weights
        self.versions = Versions()
        self._held: tuple[int, str, Accumulated] | None = None

    def step(self, terms: Sequence[Term], lr: float) -> StepReport:
        """``Learner.step``."""
        self._require_no_gradients()
        accumulated = accumulate(self._engine, self._passes, self._passes.plan(terms))
        return self._apply(accumulated, lr)

    def accumulate(self, request: UpdateRequest) -> TokenScores | None:
        """``Learner.accumulate``."""
        (terms,) = request.mini_batches
        assert not request.own_logprobs, "of a single step nothing reads the old log-probs"
        if self.versions.recorded(request) is not None:
            return None
        held = self._of(request)
        if held is None:
            held = accumulate(self._engine, self._passes, self._passes.plan(terms))
            self._held = (request.version, request.batch_digest, held)
        cuts = np.cumsum(terms[0].sequences.lengths)[:-1]
        rows = [np.split(flat, cuts) if len(flat) else [] for flat in held.scores()]
        return TokenScores(logprobs=rows[0], entropies=rows[1], kls=[])

    def update(self, request: UpdateRequest) -> UpdateResult:
        """``Learner.update``."""
        if (recorded := self.versions.recorded(request)) is not None:
            return recorded
        began, mini_batches, old_logprobs = perf_counter(), request.mini_batches, []
        if request.own_logprobs:
            old_logprobs = [self._rescored(terms) for terms in mini_batches]
            mini_batches = [
                [_measured_against(old, terms[0]), *terms[1:]]
                for old, terms in zip(old_logprobs, mini_batches, strict=True)
            ]
        held, self._held = self._of(request), None
        with self.versions.stepping():
            if held is not None:
                reports = [self._apply(held, request.lrs[0])]
            else:
                reports = [
                    self.step(terms, lr)
                    for terms, lr in zip(mini_batches, request.lrs, strict=True)
                ]
        result = UpdateResult(
            version=self.versions.held + 1,
            metrics=over_steps(reports).flat(),
            steps=[report.flat() for report in reports],
            old_logprobs=old_logprobs,
            seconds=perf_counter() - began,
        )
        self.versions.record(request, result)
        return result

    def save(self, directory: Path) -> None:
        """``Learner.save``."""
        save_state(self._engine, self.versions, directory)

    def load(self, directory: Path) -> None:
        """``Learner.load``."""
        self._require_no_gradients()  # the next step would add them to its own
        self.versions = load_state(self._engine, directory)
        self._weights.changed()

    def _of(self, request: UpdateRequest) -> Accumulated | None:
        """The gradients that are held for ``request``."""
        if self._held is not None and self._held[:2] == (request.version, request.batch_digest):
            return self._held[2]
        self._require_no_gradients()
        if not all(request.mini_batches):
            raise VersionConflict(
                f"an update of version {request.version} came without its sequences, and the"
                " learner holds no gradients of it; sum them first"
            )
        return None

    def _require_no_gradients(self) -> None:
        if self._held is not None:
            raise VersionConflict(
                f"the learner holds the gradients of another batch of version {self._held[0]}, and"
                " has not applied them; update with that batch, or build the learner anew"
            )

    def _apply(self, accumulated: Accumulated, lr: float) -> StepReport:
        self._weights.changed()
        return apply(self._engine, accumulated, lr)

    def _rescored(self, terms: Sequence[Term]) -> np.ndarray:
        """The log-probs of the first term's trained tokens, in the packing of ``step``."""
        return self._passes.rescore(self._passes.plan(terms).terms[0])


def _measured_against(old_logprobs: np.ndarray, term: Term) -> Term:
    """``term`` with ``old_logprobs`` [tokens of its sequences] in place of its own."""
    sequences = term.sequences
    rows = np.split(old_logprobs, np.cumsum(sequences.lengths)[:-1]) if len(sequences) else []
    per_token = {**sequences.per_token, "old_logprobs": rows}
    return replace(term, sequences=replace(sequences, per_token=per_token))
