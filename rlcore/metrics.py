"""Metrics as rows of the metrics table."""

from collections.abc import Mapping

import polars as pl


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
