"""Metrics of a stage are kept by step, and a damaged part costs no finished run."""

import logging
import math
from pathlib import Path

import pytest

from rlcore.results.metrics import metrics_frame, publish_metrics, stage_metrics
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.tables import TABLES

LINEAGE = Lineage(recipe_digest="r", code_fingerprint="c")


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


def publish(store: ArtifactStore, name: str, step: int, **values: float) -> None:
    publish_metrics(store, "run", name, metrics_frame("rl", step, values), LINEAGE)


def test_what_is_not_finite_is_null_in_the_table() -> None:
    """SQL over NaN compares it as the largest number there is."""
    frame = metrics_frame("rl", 3, {"a": 1, "b": math.nan, "c": math.inf, "d": -math.inf})
    assert frame["value"].to_list() == [1.0, None, None, None]
    TABLES["metrics"].validate(frame)


def test_metrics_come_back_by_step_whatever_their_names(store: ArtifactStore) -> None:
    publish(store, "b", 1, loss=0.5)
    publish(store, "a", 2, loss=0.25)
    publish(store, "c", 0, loss=1.0)
    assert stage_metrics(store, "run")["value"].to_list() == [1.0, 0.5, 0.25]


def test_another_stages_metrics_are_not_this_ones(store: ArtifactStore) -> None:
    publish(store, "000001", 1, loss=0.5)
    publish_metrics(store, "run2", "000001", metrics_frame("rl", 1, {"loss": 9.0}), LINEAGE)
    assert stage_metrics(store, "run")["value"].to_list() == [0.5]


def test_a_step_that_was_killed_and_done_again_is_there_once(store: ArtifactStore) -> None:
    publish(store, "000001", 1, loss=0.5)
    publish(store, "000001", 1, loss=0.75)
    assert stage_metrics(store, "run")["value"].to_list() == [0.75]


def test_damaged_metrics_are_left_out_with_a_warning(
    store: ArtifactStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(store, "000001", 1, loss=0.5)
    publish(store, "000002", 2, loss=0.25)
    (tmp_path / "metrics" / "run" / "000001" / "metrics.parquet").write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        assert stage_metrics(store, "run")["step"].to_list() == [2]
    assert "these metrics are left out" in caplog.text
    assert "metrics/run/000001" in caplog.text


def test_a_stage_without_metrics_has_an_empty_table(store: ArtifactStore) -> None:
    TABLES["metrics"].validate(stage_metrics(store, "run"))
