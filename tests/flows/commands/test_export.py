"""`rl-pipeline export` of a run that was killed within RL, and of the same run once it is done."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.recipes.text import write_yaml
from rlcore.store.reader import ArtifactReader
from tests.flows.crash_points import GO
from tests.flows.small_run import INLINE, ROOT, artifact_digests, run_small, summary_of

pytestmark = pytest.mark.timeout(600)


def cli(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def recorded(folder: Path) -> dict[int, str]:
    """Return iteration -> digest of the weights after it, as RL recorded them."""
    store = ArtifactReader(folder / "runs" / "store")
    rows: list[dict[str, Any]] = []
    for key in store.keys("iterations"):
        ref = store.find("iterations", key)
        assert ref is not None
        rows += store.table(ref, "iterations").to_dicts()
    return {row["iteration"]: row["digest_after"] for row in rows}


@pytest.mark.slow
def test_a_killed_run_has_a_model_and_so_has_the_finished_one(
    prefect_server: str, tmp_path: Path
) -> None:
    """A run that was killed at iteration 3 left no model that loads."""
    assert run_small(tmp_path, INLINE, kill_at="update").returncode != 0
    killed = cli(tmp_path, "export", "latest")
    assert killed.returncode == 0, killed.stderr[-3000:]
    assert "has not ended; iteration 2 is the newest whole one" in killed.stderr
    folder = Path(tmp_path, killed.stdout.split("Export: ")[1].partition(" (")[0])
    assert (
        json.loads((folder / "export.json").read_text())["weights_digest"] == recorded(tmp_path)[2]
    )
    shown = cli(tmp_path, "lineage", str(folder), "--rows", "all")
    assert shown.returncode == 0, shown.stderr
    assert all(kind in shown.stdout for kind in ("rollouts", "base_model", "recipe"))
    assert cli(tmp_path, "export", "latest").returncode == 2, "the folder is taken"

    assert run_small(tmp_path, INLINE).returncode == 0
    best = summary_of(tmp_path)
    done = cli(tmp_path, "export", "latest", "--out", "best")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "evaluated by its run" in done.stdout
    weights = Path("best", "model.safetensors")
    assert (tmp_path / weights).read_bytes() == Path(
        tmp_path, best["export"], "model.safetensors"
    ).read_bytes()
    first = cli(tmp_path, "export", "latest", "--iteration", "1", "--out", "first")
    assert recorded(tmp_path)[1][:12] in first.stdout, first.stderr[-3000:]
    beyond = cli(tmp_path, "export", "latest", "--iteration", "9")
    assert beyond.returncode == 2
    assert "has no iteration 9; it has 0 to 4" in beyond.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_run_that_goes_on_is_exported_and_ends_as_if_it_was_not(
    prefect_server: str, tmp_path: Path
) -> None:
    """Who looks at a model in the middle of a run must not wait for its end, nor change it."""
    going, alone = tmp_path / "going", tmp_path / "alone"
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(run_small, going, INLINE, kill_at="pause")
        try:
            deadline = time.monotonic() + 300
            while not list(going.glob("runs/store/iterations/*/000002/manifest.json")):
                assert time.monotonic() < deadline, "no second iteration"
                assert not run.done(), run.result().stdout[-3000:]
                time.sleep(0.2)
            newest = cli(going, "export", "latest")
            first = cli(going, "export", "latest", "--iteration", "1", "--out", "first")
            again = cli(going, "replay", "latest", "2", "--from", "1")
            assert not run.done()
        finally:
            (going / GO).touch()
        assert run.result().returncode == 0, run.result().stdout[-3000:]
    assert newest.returncode == 0, newest.stderr[-3000:]
    assert "has not ended; iteration 2 is the newest whole one" in newest.stderr
    assert recorded(going)[2][:12] in newest.stdout
    assert recorded(going)[1][:12] in first.stdout, first.stderr[-3000:]
    assert again.stdout.startswith("iterations 1 to 2 of "), again.stderr[-3000:]
    assert run_small(alone, INLINE).returncode == 0
    for kind in ("rollouts", "advantages", "policy"):
        assert artifact_digests(going, kind) == artifact_digests(alone, kind)
    assert recorded(going) == recorded(alone)


def test_a_run_that_is_not_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "quickstart-0123abcd"
    folder.mkdir(parents=True)
    recipe = load_recipe("quickstart", directory=RECIPES)
    (folder / "recipe.yaml").write_text(write_yaml(recipe.model_dump(mode="json")))
    assert main(["export", "quickstrat-0123abcd"]) == 2
    assert main(["export", "latest"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "did you mean 'quickstart-0123abcd'" in errors[0]
    assert "has no stage recorded" in errors[1]
