"""All reward workers of a run as one scorer."""

from collections.abc import Sequence

from rlcore.cluster.types import Worker, gather
from rlcore.rewards.types import Reward, RewardRow


class RewardGroup:
    """Splits rows over reward workers. ``row_timeout_s`` bounds one row, in seconds; a whole
    ``score`` may take that for each of a worker's rows, and ``timeout_s`` more."""

    def __init__(
        self, workers: Sequence[Worker], *, timeout_s: float, row_timeout_s: float
    ) -> None:
        self._workers = list(workers)
        self._timeout_s = timeout_s
        self._row_timeout_s = row_timeout_s

    def score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        """Return one reward per row, in order."""
        share = max(1, -(-len(rows) // len(self._workers)))
        pendings = [
            worker.start("score", list(rows[start : start + share]), self._row_timeout_s)
            for worker, start in zip(self._workers, range(0, len(rows), share), strict=False)
        ]
        return [
            one
            for part in gather(pendings, self._timeout_s + share * self._row_timeout_s)
            for one in part
        ]
