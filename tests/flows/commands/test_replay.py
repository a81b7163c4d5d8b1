"""``rl-pipeline replay --trajectory`` prints an answer of a run as that recorded and trained it."""

import json
from pathlib import Path

import polars as pl
import pytest

from flows.cli import main
from rlcore.results.run import Run
from tests.flows.small_run import INLINE, run_small

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def finished(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run that has ended."""
    folder = tmp_path_factory.mktemp("walked")
    run = run_small(folder, INLINE)
    assert run.returncode == 0, run.stdout[-4000:]
    return folder


@pytest.mark.slow
def test_an_answer_is_walked_from_its_reward_to_its_loss(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished)
    (row, *_) = Run.open("latest").trajectories(iteration=2).filter(pl.col("kept")).to_dicts()
    name = row["trajectory_id"]
    asked = ["replay", "latest", "2", "--trajectory"]
    assert main([*asked, name, "--format", "json"]) == 0
    tokens = json.loads(capfd.readouterr().out)
    assert [token["id"] for token in tokens] == row["token_ids"]
    assert [token["mask"] for token in tokens] == row["loss_mask"]
    sampled = [token for token in tokens if token["mask"]]
    assert sum(token["reward"] for token in sampled) == pytest.approx(row["score"])
    assert [token["advantage"] for token in sampled] == pytest.approx(
        [a for a, mask in zip(row["advantages"], row["loss_mask"], strict=True) if mask]
    )
    assert main([*asked, f"{name}x"]) == 2
    assert f"did you mean '{name}'" in capfd.readouterr().err
    assert main([*asked, name]) == 0
    assert "advantage" in capfd.readouterr().out  # as columns, or a line each where it is narrow
