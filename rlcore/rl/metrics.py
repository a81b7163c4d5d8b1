"""The metrics of an RL run: one table per iteration, written before its checkpoint.

Names are verl's. ``timing_s/<part>`` are seconds: of the five phases, and apart from them of
``testing`` (validation), ``record`` (the record of lineage) and ``save_checkpoint``, for which the
loop waited: a checkpoint is written while the next rollout samples.
``timing_s/step`` is the whole iteration and
``timing_s/outside`` what no part accounts for. These two and ``timing_s/save_checkpoint`` are known
only once the iteration is over, so they are written with the next one.

Where the critic trains beside the policy, ``timing_s/train_critic`` is the time it took, and
``timing_s/update_critic`` what the loop waited for it besides.

``perf/throughput`` is tokens/s of the iteration per GPU, as in verl; ``perf/total_tokens_per_s`` is
that of all GPUs together; a machine without any counts as one. ``perf/mfu/<role>`` is the share of
what the devices of actor or critic can compute that its update spends on the tokens it trains on:
rows that it skips, padding and second forward passes are no use.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

import polars as pl

from rlcore.cluster.activity import activity
from rlcore.results.metrics import metrics_frame, publish_metrics
from rlcore.results.rates import FLOPS, token_rates_of, utilisation
from rlcore.store.artifacts import ArtifactStore, Lineage

STAGE = "rl"
PARTS = ("gen", "reward", "adv", "update_actor", "update_critic", "sync", "testing")
SAVE = "save_checkpoint"
RECORD = "record"


class MetricsLog:
    """Collects one iteration's metrics and writes them as artifact
    ``metrics/<key>/<iteration>``."""

    def __init__(self, store: ArtifactStore, key: str, lineage: Lineage) -> None:
        self._store, self._key, self._lineage = store, key, lineage
        self._values: dict[str, float] = {}
        self._late = metrics_frame(STAGE, 0, {})
        self._step_began = perf_counter()
        self._gpus, self._peaks = 1, dict[str, float | None]()
        self.latest: dict[str, float] = {}

    def add(self, values: Mapping[str, float]) -> None:
        """Add metrics of the iteration under way."""
        self._values |= values

    def add_missing(self, values: Mapping[str, float]) -> None:
        """Add those metrics that the iteration does not have: figures over all tokens stand before
        figures over the rows that were trained on."""
        self._values = {**values, **self._values}

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Measure a part as ``timing_s/<part>``; the rounds of an iteration add up."""
        began, name = perf_counter(), f"timing_s/{part}"
        try:
            with activity(f"RL phase {part}"):
                yield
        finally:
            self._values[name] = self._values.get(name, 0.0) + perf_counter() - began

    def begin_step(self, gpus: int, peaks: Mapping[str, float | None]) -> None:
        """Start the first iteration: its clock, and its metrics apart from what came before.

        ``gpus``: of the run, 1 without any. ``peaks``: per trained role the FLOP/s that its ranks
        can reach together, None where that is not known.
        """
        self._gpus, self._peaks = gpus, dict(peaks)
        self._values = {}
        self._step_began = perf_counter()

    def publish(self, iteration: int) -> None:
        """Write what is known of ``iteration``; a table left by a killed attempt is replaced."""
        frame = pl.concat([self._late, metrics_frame(STAGE, iteration, self._values)])
        publish_metrics(self._store, self._key, f"{iteration:06d}", frame, self._lineage)
        self._late = metrics_frame(STAGE, 0, {})

    def end_step(self, iteration: int) -> None:
        """Close the iteration: ``latest`` holds all its metrics, whole-step figures included."""
        now = perf_counter()
        step = now - self._step_began
        parts = {part: self._values.get(f"timing_s/{part}", 0.0) for part in (*PARTS, RECORD, SAVE)}
        tokens = self._values.get("perf/total_num_tokens", 0.0)
        late = {
            f"timing_s/{SAVE}": parts[SAVE],
            "timing_s/step": step,
            "timing_s/outside": step - sum(parts.values()),
            **token_rates_of(tokens, step, self._gpus),
            **self._utilisation(),
        }
        self._late = metrics_frame(STAGE, iteration, late)
        self.latest = self._values | late
        self._values = {}
        self._step_began = now

    def _utilisation(self) -> dict[str, float]:
        shares: dict[str, float] = {}
        for role, peak in self._peaks.items():
            flops = self._values.get(f"{role}/{FLOPS}", 0.0)
            waited = self._values.get(f"timing_s/update_{role}", 0.0)
            seconds = self._values.get(f"timing_s/train_{role}", waited)
            shares |= utilisation(role, flops, seconds, peak)
        return shares

    def close(self) -> None:
        """Write what is known only after the last iteration."""
        publish_metrics(self._store, self._key, "end", self._late, self._lineage)
