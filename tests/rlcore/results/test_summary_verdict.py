"""The sentence with which page, report and summary begin says what the run came to."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.results.metrics import metrics_frame
from rlcore.results.summary import verdict
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import Manifest
from tests.rlcore.results.evaluated import completions

UIDS = [f"u{number}" for number in range(100)]


def policy(store: ArtifactStore, folder: Path, **metadata: Any) -> Manifest:
    folder.mkdir()
    state = {"commit": "0123456789abcdef", "dirty": False}
    (folder / "code.json").write_text(json.dumps(state))
    code = store.put("code", "c", directory=folder, lineage=Lineage("r", "c"))
    table = {"metrics": metrics_frame("rl", 0, {"x": 1.0})}
    made = Lineage("r", "c", {"code": code}, metadata=metadata)
    return store.manifest(store.put("policy", "p", tables=table, lineage=made))


def evaluated(before: int, after: int, of: str = "sft") -> list[pl.DataFrame]:
    """Return the tables of an evaluation in which so many of 100 answers were right."""
    right = {of: before, "rl": after}
    tables = [
        completions({uid: n < count for n, uid in enumerate(UIDS)}, checkpoint=name)
        for name, count in right.items()
    ]
    return [pl.concat(frames) for frames in zip(*tables, strict=True)]


@pytest.mark.parametrize(
    ("before", "after", "of", "said"),
    [
        (20, 60, "sft", "RL beat SFT: held-out accuracy 0.200 to 0.600, +0.400 [+0.3"),
        (20, 60, "base", "RL beat the base model: held-out accuracy 0.200 to 0.600"),
        (50, 51, "sft", "RL did not surely beat SFT: held-out accuracy 0.500 to 0.510, +0.010 [+0"),
        (60, 20, "sft", "RL did worse than SFT: held-out accuracy 0.600 to 0.200, -0.400 [-0"),
    ],
)
def test_it_says_whether_rl_beat_what_it_began_with(
    tmp_path: Path, before: int, after: int, of: str, said: str
) -> None:
    store = ArtifactStore(tmp_path / "store")
    made = policy(store, tmp_path / "code", iteration=30, best_iteration=20)
    sentence = verdict(store, made, *evaluated(before, after, of))
    assert sentence.startswith(f"Iteration 20 of 30; {said}")
    assert sentence.endswith("] on 100 prompts; commit 0123456789ab")


def test_it_says_that_the_export_is_not_rls(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    made = policy(store, tmp_path / "code", iteration=30, best_iteration=0)
    assert verdict(store, made, *evaluated(50, 50)) == (
        "The export is SFT's: no iteration of RL did better in validation; commit 0123456789ab"
    )


def test_before_the_evaluation_it_says_the_iteration_alone(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    made = policy(store, tmp_path / "code", iteration=30, best_iteration=20)
    assert verdict(store, made, None, None) == "Iteration 20 of 30; commit 0123456789ab"
