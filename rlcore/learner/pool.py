"""All ranks of a learner as one: sequences are balanced over them, calls are sent and waited for,
results are put back in order."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np

from rlcore.cluster.progress import activity
from rlcore.cluster.types import Pending, Worker, as_completed, ran_out
from rlcore.learner.spec import Term, TokenScores, UpdateRequest, UpdateResult
from rlcore.models.packing import Sequences, groups_of
from rlcore.models.weight_digest import WeightStamp, WeightUpdate

UNEVEN = 1.1  # tokens of the fullest rank over the best balance, at most, to keep groups whole


def balance(lengths: np.ndarray, num_shares: int) -> list[np.ndarray]:
    """Split sequences into ``num_shares`` index arrays of about equal tokens, each ascending.

    Each sequence, longest first, goes to the share with the fewest tokens (ties: the lower index),
    so that the split is a function of ``lengths`` alone. Shares may be empty when there are fewer
    sequences than shares.
    """
    load = np.zeros(num_shares, dtype=np.int64)
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    for index in np.argsort(-lengths, kind="stable").tolist():
        lightest = int(np.argmin(load))
        shares[lightest].append(index)
        load[lightest] += lengths[index]
    return [np.array(sorted(share), dtype=np.int64) for share in shares]


def balanced(lengths: np.ndarray, groups: np.ndarray | None, num_shares: int) -> list[np.ndarray]:
    """``balance``, with groups kept whole where that costs less than a tenth of balance: answers on
    different ranks cannot share the tokens of their prompt."""
    apart = balance(lengths, num_shares)
    if groups is None or num_shares == 1:
        return apart
    whole = balance_groups(lengths, groups, num_shares)
    fullest = [max(int(lengths[share].sum()) for share in shares) for shares in (whole, apart)]
    return whole if fullest[0] <= UNEVEN * fullest[1] else apart


def balance_groups(lengths: np.ndarray, groups: np.ndarray, num_shares: int) -> list[np.ndarray]:
    """``balance`` without splitting a group: [sequences] lengths and groups to index arrays."""
    _, group_of = np.unique(groups, return_inverse=True)
    tokens = np.bincount(group_of, weights=lengths).astype(np.int64)
    return [np.flatnonzero(np.isin(group_of, share)) for share in balance(tokens, num_shares)]


T = TypeVar("T")
# The calls that go through micro-batches: fewer tokens per pass need less memory.
PASSES = ("logprobs", "values", "step", "accumulate", "update")


class LearnerOutOfMemory(MemoryError):
    """A learner ran out of memory in a pass; the message names the call and what was said."""


class LearnerFuture(Generic[T]):
    """What all ranks will answer to a call that has been started; any threads may wait for it."""

    def __init__(self, wait: Callable[[], T]) -> None:
        self._wait, self._lock = wait, Lock()
        self._outcome: Future[T] = Future()

    def result(self) -> T:
        """Return it once it is there. Raises the error that the call ended with."""
        with self._lock:
            if not self._outcome.done():
                try:
                    self._outcome.set_result(self._wait())
                except Exception as error:  # noqa: BLE001  kept for all who wait
                    self._outcome.set_exception(error)
        return self._outcome.result()


@dataclass(eq=False)
class LearnerPool:
    """The ranks ``workers`` of one learner, in rank order, each holding a ``Learner``.

    Every call reaches every rank, which answers its calls in order. ``logprobs``, ``values``,
    ``update`` and ``save`` return a ``LearnerFuture`` at once, so that a caller may do something
    else meanwhile; those of one pool are waited for in the order of the calls. The other methods
    wait.
    A wait lasts at most ``timeout_s`` seconds for all ranks together; a rank's error is raised
    unchanged, but for memory that ran out (``LearnerOutOfMemory``).

    Sequences are distributed so that ranks hold about equally many tokens. ``start_s``: seconds
    that the first call allows for building the ranks; None when they are built. ``warn`` gets
    ``Learner.packing_warning`` at the first batch, if any. ``gpus``: that the ranks hold together,
    as shares. ``sequence_parallel``: consecutive ranks that get the same sequences, of which each
    computes a part of the tokens.
    """

    workers: Sequence[Worker]
    _: KW_ONLY
    timeout_s: float = 1800.0
    start_s: float | None = None
    warn: Callable[[str], None] | None = None
    gpus: float = 0.0
    sequence_parallel: int = 1
    _saving: LearnerFuture[None] | None = None

    def ready(self) -> None:
        """Wait until every rank is built; raises what a rank's constructor raised."""
        if self.start_s is not None:
            pendings = [worker.start("stamp") for worker in self.workers]
            with activity(f"the start of {self.workers[0].name} and its ranks"):
                self._collect("its start", pendings, self.start_s)
            self.start_s = None

    def logprobs(
        self, sequences: Sequences, temperature: float = 1.0, **options: Any
    ) -> LearnerFuture[TokenScores]:
        """``Learner.logprobs``, which has the ``options``, of all ``sequences``, in their order."""
        shares = self._shares(sequences)
        parts = [(sequences.take(share), temperature) for share in shares]
        wait = self._start_shares("logprobs", parts, **options)
        return LearnerFuture(lambda: _scores_in_order(shares, wait()))

    def values(
        self, sequences: Sequences, *, targets: str = "loss_mask"
    ) -> LearnerFuture[list[np.ndarray]]:
        """``Learner.values`` of all ``sequences``, in their order."""
        shares = self._shares(sequences)
        parts = [(sequences.take(share),) for share in shares]
        wait = self._start_shares("values", parts, targets=targets)
        return LearnerFuture(lambda: _in_order(shares, wait()))

    def step(self, terms: Sequence[Term], lr: float) -> dict[str, float]:
        """``Learner.step``: one optimizer step on all sequences of ``terms``."""
        return self._start_shares("step", [(part, lr) for part in self._split(terms)])()[0]

    def accumulate(self, request: UpdateRequest) -> TokenScores | None:
        """``Learner.accumulate`` with the mini-batch split over the ranks; the scores of its first
        term's sequences, in their order."""
        answers = self._start_shares("accumulate", self._requests(request))()
        if answers[0] is None:
            return None
        return _scores_in_order(self._shares_of(request.mini_batches[0][0]), answers)

    def update(self, request: UpdateRequest) -> LearnerFuture[UpdateResult]:
        """``Learner.update`` with each mini-batch split over the ranks.

        ``old_logprobs`` of the result are in the order of the request's own sequences.
        """
        wait = self._start_shares("update", self._requests(request))
        return LearnerFuture(lambda: self._merged(request, wait()))

    def peak_flops(self) -> float | None:
        """Return the FLOP/s that the devices of all ranks can reach together, None where one is
        not known."""
        peaks: list[float | None] = self._call("peak_flops")
        known = [peak for peak in peaks if peak is not None]
        return sum(known) if len(known) == len(peaks) else None

    def stamp(self) -> WeightStamp:
        """Version and digest of the weights held."""
        return self._call("stamp")[0]

    def publish(self, *, kept: int = 1) -> WeightUpdate:
        """``Learner.publish``."""
        return self._call("publish", kept)[0]

    def save(self, directory: str | Path) -> LearnerFuture[None]:
        """``Learner.save``. Calls made meanwhile wait for it first: while a rank saves, its silence
        would count as that of the next call."""
        wait = self._start("save", [(str(directory),)] * len(self.workers))
        self._saving = LearnerFuture(lambda: wait()[0])
        return self._saving

    def load(self, directory: str | Path) -> None:
        """``Learner.load``."""
        self._call("load", str(directory))

    def swap_average(self) -> None:
        """``Learner.swap_average``."""
        self._call("swap_average")

    def export_hf(self, directory: str | Path) -> None:
        """``Learner.export_hf``."""
        self._call("export_hf", str(directory))

    def stop(self) -> None:
        """End every rank's process."""
        for worker in self.workers:
            worker.stop()

    def _call(self, method: str, *same: Any) -> list[Any]:
        """Return what ``method`` returns on every rank, given the ``same`` arguments."""
        return self._start(method, [same] * len(self.workers))()

    def _start(
        self, method: str, arguments: Sequence[tuple], **options: Any
    ) -> Callable[[], list[Any]]:
        """Start ``method`` on every rank with its ``arguments`` and the ``options`` of all; return
        what waits for the results, in rank order."""
        self.ready()
        if self._saving is not None:
            with suppress(Exception):  # for who waits for the save
                self._saving.result()
            self._saving = None
        pendings = [
            worker.start(method, *values, **options)
            for worker, values in zip(self.workers, arguments, strict=True)
        ]
        return lambda: self._collect(method, pendings, self.timeout_s)

    def _start_shares(
        self, method: str, parts: Sequence[tuple], **options: Any
    ) -> Callable[[], list[Any]]:
        """``_start`` with the arguments of each share, whose ranks all get them; of the results
        each share's."""
        copies = self.sequence_parallel
        wait = self._start(method, [part for part in parts for _ in range(copies)], **options)
        return lambda: wait()[::copies]

    @property
    def _num_shares(self) -> int:
        return len(self.workers) // self.sequence_parallel

    def _collect(self, method: str, pendings: Sequence[Pending], timeout_s: float) -> list[Any]:
        """Return the results in rank order; the first rank to fail ends the wait for the others."""
        names = [f"learner rank {rank} of {len(pendings)}" for rank in range(len(pendings))]
        with raising_out_of_memory(method):
            answers = dict(as_completed(pendings, timeout_s, names=names, method=method))
        return [answers[rank] for rank in range(len(pendings))]

    def _shares(self, sequences: Sequences) -> list[np.ndarray]:
        """Return each share's indices of a batch; on the first one, warn of how it is packed."""
        if self.warn is not None:
            warn, self.warn = self.warn, None
            if line := self._call("packing_warning")[0]:
                warn(line)
        return balanced(sequences.lengths, sequences.groups, self._num_shares)

    def _shares_of(self, term: Term) -> list[np.ndarray]:
        """Return each share's indices of a term's sequences, with whole groups where its objective
        needs them."""
        sequences = term.sequences
        if term.objective.whole_groups:
            return balance_groups(sequences.lengths, groups_of(sequences), self._num_shares)
        return self._shares(sequences)

    def _split(self, terms: Sequence[Term]) -> list[list[Term]]:
        """Return each share's part of ``terms``."""
        parts: list[list[Term]] = [[] for _ in range(self._num_shares)]
        for term in terms:
            for part, share in zip(parts, self._shares_of(term), strict=True):
                part.append(replace(term, sequences=term.sequences.take(share)))
        return parts

    def _requests(self, request: UpdateRequest) -> list[tuple[UpdateRequest]]:
        """Return the arguments of each share for an update: its part of every mini-batch."""
        parts_BS = [self._split(terms) for terms in request.mini_batches]
        return [
            (replace(request, mini_batches=[parts_S[share] for parts_S in parts_BS]),)
            for share in range(self._num_shares)
        ]

    def _merged(self, request: UpdateRequest, results: Sequence[UpdateResult]) -> UpdateResult:
        """Return the result of all ranks."""
        first = replace(results[0], peak_bytes=max(result.peak_bytes for result in results))
        if not first.old_logprobs:
            return first
        merged = [
            _flat_in_order(
                self._shares_of(terms[0]),
                terms[0].sequences.lengths,
                [result.old_logprobs[step] for result in results],
            )
            for step, terms in enumerate(request.mini_batches)
        ]
        return replace(first, old_logprobs=merged)


@contextmanager
def raising_out_of_memory(method: str) -> Iterator[None]:
    """Raise LearnerOutOfMemory where the body, a call of ``method``, runs out of memory in a
    learner's pass; any other error passes."""
    try:
        yield
    except Exception as error:
        if method not in PASSES or not ran_out(error):
            raise
        said = next((line.strip() for line in str(error).splitlines() if ran_out(line)), "")
        raise LearnerOutOfMemory(f"memory ran out in the learner's {method}: {said}") from error


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
