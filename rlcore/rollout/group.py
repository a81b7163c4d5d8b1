"""All rollout engines of a run as one sampler."""

from collections.abc import Sequence

from rlcore.cluster.types import Worker, gather
from rlcore.rollout.types import Generation, Sampling, WeightStamp, WeightSyncError, WeightUpdate


class RolloutGroup:
    """Splits requests over engines; every engine must hold the same weights.

    ``timeout_s`` bounds each wait and ``sync_timeout_s`` each weight load, in seconds.
    """

    def __init__(
        self, workers: Sequence[Worker], *, timeout_s: float, sync_timeout_s: float
    ) -> None:
        self._workers = list(workers)
        self._timeout_s = timeout_s
        self._sync_timeout_s = sync_timeout_s

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Generation]:
        """Return one continuation per prompt, in order.

        Engines get contiguous shares, so that the samples of one prompt share a prefix cache.
        """
        share = -(-len(prompts) // len(self._workers))
        pendings = [
            worker.start(
                "generate",
                [list(map(int, p)) for p in prompts[start : start + share]],
                [int(s) for s in seeds[start : start + share]],
                sampling,
            )
            for worker, start in zip(
                self._workers, range(0, len(prompts), max(1, share)), strict=False
            )
        ]
        return [one for part in gather(pendings, self._timeout_s) for one in part]

    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        """Load ``update`` into every engine. Raises WeightSyncError when one reports other
        weights."""
        pendings = [worker.start("load_weights", update) for worker in self._workers]
        return self._agreed(gather(pendings, self._sync_timeout_s), update.stamp)

    def stamp(self) -> WeightStamp:
        """Return what all engines sample from. Raises WeightSyncError when they differ."""
        pendings = [worker.start("stamp") for worker in self._workers]
        stamps = gather(pendings, self._sync_timeout_s)
        return self._agreed(stamps, stamps[0])

    def _agreed(self, stamps: list[WeightStamp], expected: WeightStamp) -> WeightStamp:
        for worker, stamp in zip(self._workers, stamps, strict=True):
            if stamp != expected:
                raise WeightSyncError(
                    f"rollout engine '{worker.name}' holds weights version {stamp.version}"
                    f" (digest {stamp.digest[:12]}) but version {expected.version} (digest"
                    f" {expected.digest[:12]}) was expected; rerun the flow to sync it afresh"
                )
        return expected
