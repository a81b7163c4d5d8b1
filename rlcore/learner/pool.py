"""All ranks of a learner as one: batches are split over them and results put back in order."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from rlcore.cluster.activity import activity
from rlcore.cluster.types import Pending, Worker, as_completed
from rlcore.learner.memory import told_apart
from rlcore.learner.spec import Term, TokenScores, UpdateRequest, UpdateResult
from rlcore.models.packing import Sequences, balance, balance_groups, groups_of
from rlcore.weights.stamp import WeightStamp, WeightUpdate


class LearnerPool:
    """One worker per rank, in rank order, each holding a ``Learner``.

    Sequences are distributed so that ranks hold about equally many tokens. Every call reaches every
    rank and waits at most ``timeout_s`` seconds for all of them; a rank's error is raised
    unchanged. ``warn`` gets ``Learner.packing_warning`` of the first batch, if any. ``start_s``:
    seconds that the first call allows for building the ranks; None when they are built. ``gpus``:
    that the ranks hold together, as shares.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        timeout_s: float = 1800.0,
        start_s: float | None = None,
        warn: Callable[[str], None] | None = None,
        gpus: float = 0.0,
    ) -> None:
        self._workers = list(workers)
        self._timeout_s = timeout_s
        self._start_s = start_s
        self._warn = warn
        self.gpus = gpus
        self._saving: _Once | None = None

    def ready(self) -> None:
        """Wait until every rank is built; raises what a rank's constructor raised."""
        if self._start_s is not None:
            pendings = [worker.start("stamp") for worker in self._workers]
            with activity(f"the start of {self._workers[0].name} and its ranks"):
                self._collect("its start", pendings, self._start_s)
            self._start_s = None

    def logprobs(
        self,
        sequences: Sequences,
        temperature: float = 1.0,
        *,
        targets: str = "all",
        entropy: bool = False,
        full_kl: bool = False,
    ) -> TokenScores:
        """``Learner.logprobs`` of all ``sequences``, in their order."""
        shares = self._shares(sequences)
        parts = [(sequences.take(share), temperature) for share in shares]
        keywords = {"targets": targets, "entropy": entropy, "full_kl": full_kl}
        return _scores_in_order(shares, self._call("logprobs", parts, **keywords))

    def values(self, sequences: Sequences, *, targets: str = "loss_mask") -> list[np.ndarray]:
        """``Learner.values`` of all ``sequences``, in their order."""
        shares = self._shares(sequences)
        parts = [(sequences.take(share),) for share in shares]
        return _in_order(shares, self._call("values", parts, targets=targets))

    def step(self, terms: Sequence[Term], lr: float) -> dict[str, float]:
        """``Learner.step``: one optimizer step on all sequences of ``terms``."""
        return self.start_step(terms, lr)()

    def start_step(self, terms: Sequence[Term], lr: float) -> Callable[[], dict[str, float]]:
        """Start ``step``, after those started before it; return a function that waits for its
        metrics.

        The functions must be called in the order of the starts.
        """
        pendings = self._start("step", [(part, lr) for part in self._split(terms)])
        return lambda: self._collect("step", pendings, self._timeout_s)[0]

    def accumulate(self, request: UpdateRequest) -> TokenScores | None:
        """``Learner.accumulate`` with the mini-batch split over the ranks; the scores of its first
        term's sequences, in their order."""
        answers = self._call("accumulate", self._requests(request))
        if answers[0] is None:
            return None
        return _scores_in_order(self._shares_of(request.mini_batches[0][0]), answers)

    def update(self, request: UpdateRequest) -> UpdateResult:
        """``Learner.update`` with each mini-batch split over the ranks.

        ``old_logprobs`` of the result are in the order of the request's own sequences.
        """
        results: list[UpdateResult] = self._call("update", self._requests(request))
        if not results[0].old_logprobs:
            return results[0]
        merged = [
            _flat_in_order(
                self._shares_of(terms[0]),
                terms[0].sequences.lengths,
                [result.old_logprobs[step] for result in results],
            )
            for step, terms in enumerate(request.mini_batches)
        ]
        return replace(results[0], old_logprobs=merged)

    def peak_flops(self) -> float | None:
        """Return the FLOP/s that the devices of all ranks can reach together, None where one is
        not known."""
        peaks: list[float | None] = self._call("peak_flops")
        known = [peak for peak in peaks if peak is not None]
        return sum(known) if len(known) == len(peaks) else None

    def stamp(self) -> WeightStamp:
        """Version and digest of the weights held."""
        return self._call("stamp")[0]

    def publish(self, path: str | Path, version: int | None = None) -> WeightUpdate:
        """``Learner.publish``."""
        return self._call("publish", [(str(path), version)] * len(self._workers))[0]

    def save(self, directory: str | Path) -> None:
        """``Learner.save``."""
        self.start_save(directory)()

    def start_save(self, directory: str | Path) -> Callable[[], None]:
        """Start ``save``; return a function that waits for it, in any thread.

        Calls made meanwhile wait for it first: the ranks answer in order, and while a rank saves
        its silence would count as that of the next call.
        """
        pendings = self._start("save", [(str(directory),)] * len(self._workers))
        saving = _Once(lambda: self._collect("save", pendings, self._timeout_s))
        self._saving = saving
        return saving.result

    def load(self, directory: str | Path) -> None:
        """``Learner.load``."""
        self._call("load", [(str(directory),)] * len(self._workers))

    def export_hf(self, directory: str | Path) -> None:
        """``Learner.export_hf``."""
        self._call("export_hf", [(str(directory),)] * len(self._workers))

    def stop(self) -> None:
        """End every rank's process."""
        for worker in self._workers:
            worker.stop()

    def _shares(self, sequences: Sequences) -> list[np.ndarray]:
        """Return each rank's indices of a batch; on the first one, warn of its packing's cost."""
        if self._warn is not None and len(sequences):
            warn, self._warn = self._warn, None
            arguments = [(sequences.lengths,)] * len(self._workers)
            if line := self._call("packing_warning", arguments)[0]:
                warn(line)
        return balance(sequences.lengths, len(self._workers))

    def _split(self, terms: Sequence[Term]) -> list[list[Term]]:
        """Return each rank's part of ``terms``, with whole groups where the objective needs
        them."""
        parts: list[list[Term]] = [[] for _ in self._workers]
        for term in terms:
            for part, share in zip(parts, self._shares_of(term), strict=True):
                part.append(replace(term, sequences=term.sequences.take(share)))
        return parts

    def _requests(self, request: UpdateRequest) -> list[tuple[UpdateRequest]]:
        """Return the arguments of each rank for an update: its part of every mini-batch."""
        parts_BR = [self._split(terms) for terms in request.mini_batches]
        return [
            (replace(request, mini_batches=[parts_R[rank] for parts_R in parts_BR]),)
            for rank in range(len(self._workers))
        ]

    def _shares_of(self, term: Term) -> list[np.ndarray]:
        sequences = term.sequences
        if term.objective.whole_groups:
            return balance_groups(sequences.lengths, groups_of(sequences), len(self._workers))
        return self._shares(sequences)

    def _call(
        self,
        method: str,
        arguments: Sequence[tuple] | None = None,
        **keywords: Any,
    ) -> list[Any]:
        """Start ``method`` on every rank, then collect the results in rank order."""
        per_rank = arguments or [()] * len(self._workers)
        return self._collect(method, self._start(method, per_rank, **keywords), self._timeout_s)

    def _start(self, method: str, arguments: Sequence[tuple], **keywords: Any) -> Sequence[Pending]:
        self.ready()
        if self._saving is not None:
            self._saving.wait()
            self._saving = None
        with told_apart(method):  # a worker of this process does it now
            return [
                worker.start(method, *values, **keywords)
                for worker, values in zip(self._workers, arguments, strict=True)
            ]

    def _collect(self, method: str, pendings: Sequence[Pending], timeout_s: float) -> list[Any]:
        """Return the results in rank order; the first rank to fail ends the wait for the others."""
        names = [f"learner rank {rank} of {len(pendings)}" for rank in range(len(pendings))]
        with told_apart(method):
            answers = dict(as_completed(pendings, timeout_s, names=names, method=method))
        return [answers[rank] for rank in range(len(pendings))]


class _Once:
    """A wait that several threads share: the first does it, and all get its error."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait, self._lock = wait, Lock()
        self._over = False
        self._error: Exception | None = None

    def wait(self) -> None:
        """Return once it is over, however it ended."""
        with self._lock:
            if self._over:
                return
            try:
                self._wait()
            except Exception as error:  # noqa: BLE001  kept for ``result``
                self._error = error
            self._over = True

    def result(self) -> None:
        """Return once it is over. Raises the error that it ended with."""
        self.wait()
        if self._error is not None:
            raise self._error


def _scores_in_order(shares: Sequence[np.ndarray], parts: Sequence[TokenScores]) -> TokenScores:
    """Undo the split of scored sequences; what was not asked for stays empty."""

    def merged(rows: list[list[np.ndarray]]) -> list[np.ndarray]:
        return _in_order(shares, rows) if any(rows) else []

    return TokenScores(
        merged([part.logprobs for part in parts]),
        merged([part.entropies for part in parts]),
        merged([part.kls for part in parts]),
    )


def _flat_in_order(
    shares: Sequence[np.ndarray], lengths: np.ndarray, parts: Sequence[np.ndarray]
) -> np.ndarray:
    """Undo the split of an array over all tokens of sequences of ``lengths``."""
    rows = [
        np.split(part, np.cumsum(lengths[share])[:-1]) if len(share) else []
        for share, part in zip(shares, parts, strict=True)
    ]
    return np.concatenate(_in_order(shares, rows))


def _in_order(shares: Sequence[np.ndarray], parts: Sequence[Sequence]) -> list:
    """Undo the split: entry ``shares[r][i]`` of the result is ``parts[r][i]``."""
    merged: list = [None] * sum(len(share) for share in shares)
    for share, part in zip(shares, parts, strict=True):
        for index, value in zip(share.tolist(), part, strict=True):
            merged[index] = value
    return merged
