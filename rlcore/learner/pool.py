"""All ranks of a learner as one: batches are split over them and results put back in order."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlcore.cluster.types import Worker
from rlcore.learner.ranks import Ranks
from rlcore.learner.spec import Term, TokenScores, UpdateRequest, UpdateResult
from rlcore.models.balance import balance_groups, balanced
from rlcore.models.packing import Sequences, groups_of
from rlcore.weights.stamp import WeightStamp, WeightUpdate


class LearnerPool:
    """The ranks ``workers`` of one learner (``Ranks``, for ``timeout_s`` and ``start_s`` too).

    Sequences are distributed so that ranks hold about equally many tokens. ``warn`` gets
    ``Learner.packing_warning`` of the first batch, if any. ``gpus``: that the ranks hold together,
    as shares. A method ``start_...`` returns a function that waits for what was started; those of
    one pool must be called in the order of the starts.
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
        self._ranks = Ranks(workers, timeout_s=timeout_s, start_s=start_s)
        self._warn = warn
        self.gpus = gpus

    def ready(self) -> None:
        """Wait until every rank is built; raises what a rank's constructor raised."""
        self._ranks.ready()

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
        return self.start_logprobs(
            sequences, temperature, targets=targets, entropy=entropy, full_kl=full_kl
        )()

    def start_logprobs(
        self,
        sequences: Sequences,
        temperature: float = 1.0,
        *,
        targets: str = "all",
        entropy: bool = False,
        full_kl: bool = False,
    ) -> Callable[[], TokenScores]:
        """Start ``logprobs``."""
        shares = self._shares(sequences)
        parts = [(sequences.take(share), temperature) for share in shares]
        wait = self._ranks.start(
            "logprobs", parts, targets=targets, entropy=entropy, full_kl=full_kl
        )
        return lambda: _scores_in_order(shares, wait())

    def values(self, sequences: Sequences, *, targets: str = "loss_mask") -> list[np.ndarray]:
        """``Learner.values`` of all ``sequences``, in their order."""
        return self.start_values(sequences, targets=targets)()

    def start_values(
        self, sequences: Sequences, *, targets: str = "loss_mask"
    ) -> Callable[[], list[np.ndarray]]:
        """Start ``values``."""
        shares = self._shares(sequences)
        parts = [(sequences.take(share),) for share in shares]
        wait = self._ranks.start("values", parts, targets=targets)
        return lambda: _in_order(shares, wait())

    def step(self, terms: Sequence[Term], lr: float) -> dict[str, float]:
        """``Learner.step``: one optimizer step on all sequences of ``terms``."""
        return self.start_step(terms, lr)()

    def start_step(self, terms: Sequence[Term], lr: float) -> Callable[[], dict[str, float]]:
        """Start ``step``, after those started before it; the function returns its metrics."""
        wait = self._ranks.start("step", [(part, lr) for part in self._split(terms)])
        return lambda: wait()[0]

    def accumulate(self, request: UpdateRequest) -> TokenScores | None:
        """``Learner.accumulate`` with the mini-batch split over the ranks; the scores of its first
        term's sequences, in their order."""
        answers = self._ranks.call("accumulate", self._requests(request))
        if answers[0] is None:
            return None
        return _scores_in_order(self._shares_of(request.mini_batches[0][0]), answers)

    def update(self, request: UpdateRequest) -> UpdateResult:
        """``Learner.update`` with each mini-batch split over the ranks.

        ``old_logprobs`` of the result are in the order of the request's own sequences.
        """
        return self.start_update(request)()

    def start_update(self, request: UpdateRequest) -> Callable[[], UpdateResult]:
        """Start ``update``."""
        wait = self._ranks.start("update", self._requests(request))
        return lambda: self._merged(request, wait())

    def peak_flops(self) -> float | None:
        """Return the FLOP/s that the devices of all ranks can reach together, None where one is
        not known."""
        peaks: list[float | None] = self._ranks.call("peak_flops")
        known = [peak for peak in peaks if peak is not None]
        return sum(known) if len(known) == len(peaks) else None

    def stamp(self) -> WeightStamp:
        """Version and digest of the weights held."""
        return self.start_stamp()()

    def start_stamp(self) -> Callable[[], WeightStamp]:
        """Start ``stamp``."""
        wait = self._ranks.start("stamp")
        return lambda: wait()[0]

    def publish(self, version: int | None = None) -> WeightUpdate:
        """``Learner.publish``."""
        return self._ranks.call("publish", [(version,)] * len(self._ranks))[0]

    def save(self, directory: str | Path) -> None:
        """``Learner.save``."""
        self.start_save(directory)()

    def start_save(self, directory: str | Path) -> Callable[[], None]:
        """Start ``save``; return a function that waits for it, in any thread. Calls made meanwhile
        wait for it first."""
        return self._ranks.start_save(directory)

    def load(self, directory: str | Path) -> None:
        """``Learner.load``."""
        self._ranks.call("load", [(str(directory),)] * len(self._ranks))

    def export_hf(self, directory: str | Path) -> None:
        """``Learner.export_hf``."""
        self._ranks.call("export_hf", [(str(directory),)] * len(self._ranks))

    def stop(self) -> None:
        """End every rank's process."""
        self._ranks.stop()

    def _shares(self, sequences: Sequences) -> list[np.ndarray]:
        """Return each rank's indices of a batch; on the first one, warn of its packing's cost."""
        if self._warn is not None and len(sequences):
            warn, self._warn = self._warn, None
            arguments = [(sequences.lengths,)] * len(self._ranks)
            if line := self._ranks.call("packing_warning", arguments)[0]:
                warn(line)
        return balanced(sequences.lengths, sequences.groups, len(self._ranks))

    def _split(self, terms: Sequence[Term]) -> list[list[Term]]:
        """Return each rank's part of ``terms``, with whole groups where the objective needs
        them."""
        parts: list[list[Term]] = [[] for _ in range(len(self._ranks))]
        for term in terms:
            for part, share in zip(parts, self._shares_of(term), strict=True):
                part.append(replace(term, sequences=term.sequences.take(share)))
        return parts

    def _requests(self, request: UpdateRequest) -> list[tuple[UpdateRequest]]:
        """Return the arguments of each rank for an update: its part of every mini-batch."""
        parts_BR = [self._split(terms) for terms in request.mini_batches]
        return [
            (replace(request, mini_batches=[parts_R[rank] for parts_R in parts_BR]),)
            for rank in range(len(self._ranks))
        ]

    def _merged(self, request: UpdateRequest, results: Sequence[UpdateResult]) -> UpdateResult:
        """Return the result of all ranks."""
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

    def _shares_of(self, term: Term) -> list[np.ndarray]:
        sequences = term.sequences
        if term.objective.whole_groups:
            return balance_groups(sequences.lengths, groups_of(sequences), len(self._ranks))
        return self._shares(sequences)


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
