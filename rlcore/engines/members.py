"""The engines of a pool. One that is lost, killed or stopped, is replaced while the others sample:
a new one loads the weights that all hold, proves it, and is given the same rows, which it samples
bit for bit as the lost one would have (of several turns, but for what a prefix cache has rounded).
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from time import monotonic
from typing import Any

from rlcore.cluster.progress import activity
from rlcore.cluster.types import Worker, WorkerError
from rlcore.models.weight_digest import WeightSyncError, WeightUpdate

MOST = 2  # times in a row that an engine is replaced before it has answered: what ends it may stay
SAME = 0.1  # nats, mean: further from the others' log-probs of the canary is another model
REPLACED, REPLACED_S = "rollout/engines_replaced", "timing_s/engines_replaced"  # metrics
StartNew = Callable[[int], Worker]


class Members:
    """Holds the engines, in their order; what all of them hold is told by ``loaded``, ``probed``.

    ``start_new`` returns a new engine of that number, built; None where none can be had.
    ``sync_timeout_s`` bounds its load of the weights, in seconds; ``log`` gets a line of it.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        sync_timeout_s: float,
        start_new: StartNew | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._workers = list(workers)
        self._sync_timeout_s, self._start_new, self._log = sync_timeout_s, start_new, log
        self._in_a_row = [0] * len(self._workers)
        self._update: WeightUpdate | None = None
        self._gone = False  # the file of these weights
        self._canary: tuple[list[list[int]], list[list[float]]] | None = None
        self._lost_s: deque[float] = deque()  # seconds of each that another thread may take

    def __len__(self) -> int:
        """Return the number of engines."""
        return len(self._workers)

    def __getitem__(self, index: int) -> Worker:
        return self._workers[index]

    def loaded(self, update: WeightUpdate) -> None:
        """All engines are about to hold these weights."""
        self._update, self._gone, self._canary = update, False, None

    def cannot_load_again(self) -> None:
        """The file of the weights is gone: an engine that is lost from here on to the next load
        ends the attempt, as none can take its place."""
        self._gone = True

    def probed(self, token_ids: list[list[int]], logprobs: list[list[float]]) -> None:
        """All engines hold the weights that give these log-probs."""
        self._canary = token_ids, logprobs

    def answered(self, index: int) -> None:
        """The engine has sampled what it was asked for."""
        self._in_a_row[index] = 0

    def successor(self, index: int, lost: Worker, error: WorkerError) -> Worker:
        """Return what serves in place of ``lost``, which ``error`` is of: ended, with all that it
        had started, and replaced, unless another call has done so.

        Raises ``error`` where none can be had, or none with the weights that all hold, and where
        one after the other is lost.
        """
        if self._workers[index] is not lost:
            return self._workers[index]
        if self._start_new is None or self._gone or self._in_a_row[index] >= MOST:
            raise error
        self._in_a_row[index] += 1
        began = monotonic()
        lost.stop()
        with activity(f"the replacement of {lost.name}"):
            worker = self._start_new(index)
            self._give_weights(worker)
        self._workers[index] = worker
        took = monotonic() - began
        self._lost_s.append(took)
        self._log(
            f"rollout engine '{lost.name}' is lost and replaced in {took:.0f} s; its rows are"
            " sampled again"
        )
        return worker

    def taken_losses(self) -> dict[str, float]:
        """Return as metrics how many engines were replaced since the last call, and the seconds
        until their successors sampled; nothing where none was lost."""
        seconds = [self._lost_s.popleft() for _ in range(len(self._lost_s))]
        return {REPLACED: float(len(seconds)), REPLACED_S: sum(seconds)} if seconds else {}

    def _give_weights(self, worker: Worker) -> None:
        if self._update is None:
            return
        held = self._ask(worker, "load_weights", self._update)
        if held != self._update.stamp:
            raise WeightSyncError(
                f"rollout engine '{worker.name}', new in place of one that was lost, holds weights"
                f" {held.digest[:12]} and not {self._update.stamp.digest[:12]}; rerun the flow"
            )
        if self._canary is None:
            return
        token_ids, expected = self._canary
        found = self._ask(worker, "probe", token_ids)
        pairs = zip(chain(*expected), chain(*found), strict=True)
        gaps = [abs(old - new) for old, new in pairs]
        if not sum(gaps) <= SAME * len(gaps):  # not ``>``, which NaN would pass
            raise WeightSyncError(
                f"rollout engine '{worker.name}', new in place of one that was lost, was handed the"
                f" same weights and its log-probs of {len(gaps)} canary tokens are others; rerun"
                " the flow"
            )

    def _ask(self, worker: Worker, method: str, *arguments: Any) -> Any:
        return worker.start(method, *arguments).result(self._sync_timeout_s)

    def stop(self) -> None:
        """End every engine."""
        for worker in self._workers:
            worker.stop()
