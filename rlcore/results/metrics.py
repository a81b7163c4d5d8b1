"""Metrics as rows of the metrics table, where a stage keeps them, and rates of training.

They contain timings, so they are separate artifacts below the stage's key: a policy's digest, on
which later cache keys depend, must depend on the weights alone.
"""

import logging
from collections.abc import Mapping
from math import ceil

import polars as pl

from rlcore.store.artifacts import ArtifactStore, DamagedArtifact, Lineage
from rlcore.store.reader import ArtifactReader

MEMORY = "perf/memory_gib"  # .../<role>: of the fullest rank
FLOPS = "model_flops"  # <role>/model_flops: what the tokens of an update need


def whole_gpus(shares: float) -> int:
    """Return the GPUs that ``shares`` of them take; 1 for none: a CPU machine is one device."""
    return max(1, ceil(shares - 1e-9))


def token_rates_of(tokens: float, seconds: float, gpus: int) -> dict[str, float]:
    """Return the tokens/s of all devices, and per GPU as verl's ``perf/throughput``."""
    total = tokens / seconds
    return {"perf/total_tokens_per_s": total, "perf/throughput": total / gpus}


def utilisation(role: str, flops: float, seconds: float, peak: float | None) -> dict[str, float]:
    """Return ``perf/mfu/<role>``: ``flops`` in ``seconds`` as a share of ``peak`` FLOP/s of all
    devices; nothing where no peak is known or nothing was done. Rows that are skipped, padding and
    second forward passes are no use."""
    if peak is None or not flops or seconds <= 0:
        return {}
    return {f"perf/mfu/{role}": flops / seconds / peak}


KIND = "metrics"
logger = logging.getLogger(__name__)


def metrics_frame(stage: str, step: int, values: Mapping[str, float]) -> pl.DataFrame:
    """Return ``values`` as rows of the metrics table; a non-finite value becomes null."""
    frame = pl.DataFrame(
        {
            "stage": [stage] * len(values),
            "step": [step] * len(values),
            "name": list(values),
            "value": [float(value) for value in values.values()],
        },
        schema={"stage": pl.String, "step": pl.Int64, "name": pl.String, "value": pl.Float64},
    )
    finite = pl.col("value").is_finite()
    return frame.with_columns(pl.when(finite).then(pl.col("value")).alias("value"))


def publish_metrics(
    store: ArtifactStore,
    key: str,
    name: str,
    frame: pl.DataFrame,
    lineage: Lineage,
    spans: pl.DataFrame | None = None,
) -> None:
    """Write ``frame`` as ``metrics/<key>/<name>``, and the table ``spans`` beside it where it has
    rows; one that a killed attempt left is replaced."""
    store.discard(KIND, f"{key}/{name}")
    tables = {"metrics": frame}
    if spans is not None and spans.height:
        tables["spans"] = spans
    store.put(KIND, f"{key}/{name}", tables=tables, lineage=lineage)


def stage_metrics(
    store: ArtifactReader,
    key: str,
    *,
    last: int | None = None,
    known: dict[str, pl.DataFrame] | None = None,
) -> pl.DataFrame:
    """Return all stored metrics of the stage run ``key``, by step, up to step ``last``: a longer
    run may have continued there.

    Damaged ones are left out, with a warning: they cannot be measured again, and a finished run
    must not fail because of missing curves. ``known``: what was read before, by key; is added to.
    """
    known, nothing = {} if known is None else known, metrics_frame("", 0, {})
    names = sorted(store.keys(KIND, f"{key}/"))
    for name in names:
        if name in known:
            continue
        try:
            if (ref := store.find(KIND, name)) is not None:
                known[name] = store.table(ref, "metrics")
        except DamagedArtifact as damage:
            logger.warning(f"these metrics are left out: {damage}")
            known[name] = nothing
    frames = (known[name] for name in names if name in known)
    found = pl.concat([nothing, *frames]).sort("step", maintain_order=True)
    return found if last is None else found.filter(pl.col("step") <= last)
