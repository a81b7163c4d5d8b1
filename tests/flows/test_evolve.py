"""The flow ``evolve``: killed in a round it continues to the same end, and a worker can run it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest

from flows import services
from flows.local import client_settings, down
from flows.paths import RECIPES, ROOT
from rlcore.data.read import training_texts
from rlcore.models.base import build_base_model
from rlcore.models.files import model_directory
from rlcore.recipes.load import load_recipe
from rlcore.results.run import Run
from tests.flows.small_run import INLINE, SMALL, artifact_digests, run_small
from tests.flows.test_local import UP, environment, python

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
# Enough for answers that end by themselves.
LEARNT = {**INLINE, "sft.max_steps": 240, "rl.iterations": 1}
SHORT = {
    **SMALL,
    **INLINE,
    "reward.functions": [{"name": "arithmetic"}],
    "evolve.rounds": 3,
    "evolve.max_prompts": 12,
    "evolve.max_new_tokens": 40,
}
PLAYED = {
    **INLINE,
    "data.sources.0.train_size": 64,
    "data.sources.0.demonstrations": 256,
    "evolve.rounds": 1,
    "evolve.max_prompts": 6,
    "tracking.wandb": False,
}
KINDS = ("evolve_rounds", "evolve_samples", "evolution")


@pytest.fixture(scope="module")
def model(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small model that answers."""
    folder = tmp_path_factory.mktemp("learnt")
    done = run_small(folder, LEARNT)
    assert done.returncode == 0, done.stdout[-4000:]
    run = Run.open("latest", folder / "runs")
    policy = run.result("rl")
    assert policy is not None
    return shutil.copytree(model_directory(run.store.directory(policy)), folder / "model")


def evolved(
    folder: Path,
    model: Path,
    *,
    kill_in: int = 0,
    recipe: str = "quickstart",
    settings: Mapping[str, Any] = SHORT,
) -> subprocess.CompletedProcess[str]:
    """Run the command in ``folder``, in a process of its own; see ``killed_evolve``."""
    folder.mkdir(exist_ok=True)
    overrides = [text for k, v in settings.items() for text in ("-o", f"{k}={json.dumps(v)}")]
    command = [sys.executable, "-m", "tests.flows.killed_evolve", str(kill_in)]
    return subprocess.run(
        [*command, str(model), recipe, *overrides, "--format", "json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def digests(folder: Path) -> dict[str, dict[str, str]]:
    return {kind: artifact_digests(folder, kind) for kind in KINDS}


def shown(folder: Path, number: int) -> list[int]:
    """Return the rounds that the policy was shown in round ``number``, over all problems."""
    (table,) = folder.glob(f"runs/store/evolve_rounds/*/{number:06d}/evolve_answers.parquet")
    return pl.read_parquet(table)["memory"].explode().drop_nulls().to_list()


def test_killed_in_round_two_it_goes_on_to_the_same_end(model: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = evolved(whole, model)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads(done.stdout)
    schema = json.loads((ROOT / "docs" / "schemas" / "evolve.schema.json").read_text())
    jsonschema.validate(rows, schema, cls=jsonschema.Draft202012Validator)
    values = {row["metric"]: row["value"] for row in rows if row["data_source"] == "all"}
    assert shown(whole, 2), "the model never answers, so nothing is tested"
    assert values["round-03/policy_acc"] == values["success/last_round"]
    assert "independent/maj@3" in values
    killed = evolved(cut, model, kill_in=2)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-4000:]
    standing = {kind: len(found) for kind, found in digests(cut).items()}
    assert standing == {"evolve_rounds": 1, "evolve_samples": 1, "evolution": 0}
    again = evolved(cut, model)
    assert again.returncode == 0, again.stderr[-4000:]
    assert digests(cut) == digests(whole)
    assert {kind: len(found) for kind, found in digests(cut).items()} == dict(
        zip(KINDS, (3, 3, 1), strict=True)
    )
    kept = json.loads(again.stdout)
    assert [row for row in kept if row["part"] == "figure"] == [
        row for row in rows if row["part"] == "figure"
    ]


def test_another_reward_scores_anew_and_plays_nothing(model: Path, tmp_path: Path) -> None:
    first = evolved(tmp_path, model)
    assert first.returncode == 0, first.stderr[-4000:]
    played = artifact_digests(tmp_path, "evolve_rounds")
    other = {**SHORT, "reward.functions": [{"name": "gsm8k"}], "evolve.rounds": 2}
    second = evolved(tmp_path, model, settings=other)
    assert second.returncode == 0, second.stderr[-4000:]
    assert "rollout engine" not in second.stderr, "all rounds stand"
    assert artifact_digests(tmp_path, "evolve_rounds") == played
    assert len(artifact_digests(tmp_path, "evolution")) == 2
    again = evolved(tmp_path, model, settings=other)
    assert again.stdout == second.stdout
    assert "prepared" not in again.stderr, "the result was there"


def test_a_policy_with_tools_plays_episodes(prefect_server: str, tmp_path: Path) -> None:
    """A model of random weights: its episodes end, and the flow reports what it gets."""
    del prefect_server
    recipe = load_recipe("calculator-grpo", INLINE, directory=RECIPES)
    texts = training_texts(recipe.data, seed=0, environment=recipe.environment)
    build_base_model(recipe.model, tmp_path / "model", texts=texts, seed=0)
    done = evolved(tmp_path, tmp_path / "model", recipe="calculator-grpo", settings=PLAYED)
    assert done.returncode == 0, done.stderr[-4000:]
    (table,) = tmp_path.glob("runs/store/evolve_rounds/*/000001/evolve_answers.parquet")
    answers = pl.read_parquet(table)
    assert answers["turns"].list.len().min() == 1
    roles = answers["turns"].list.first().struct.field("role").unique().to_list()
    assert roles == ["assistant"]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server with a worker, started from nothing: the variables of its clients."""
    folder = tmp_path_factory.mktemp("deployed")
    home = folder / ".prefect"
    try:
        started = python(UP, str(home), str(folder / ".env"), extra={"PYTHONPATH": str(ROOT)})
        assert started.returncode == 0, started.stderr
        server = services.find(home, "server")
        assert server is not None
        assert server.port is not None
        yield client_settings(home, server.port)
    finally:
        down(home)


def test_a_worker_runs_its_deployment(
    deployed: dict[str, str], model: Path, tmp_path: Path
) -> None:
    store = tmp_path / "runs" / "store"
    parameters = {
        "model": str(model),
        "recipe": "quickstart",
        "overrides": {**SHORT, "evolve.rounds": 1, "store": str(store)},
    }
    command = [sys.executable, "-m", "prefect", "deployment", "run", "evolve/model", "--watch"]
    done = subprocess.run(
        [*command, "--params", json.dumps(parameters)],
        cwd=tmp_path,
        env={**environment(), **deployed},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (evolution,) = store.glob("evolution/*")
    results = pl.read_parquet(evolution / "eval_results.parquet")
    assert {"round-01/policy_acc", "success/chosen", "independent/maj@1"} <= set(results["metric"])
