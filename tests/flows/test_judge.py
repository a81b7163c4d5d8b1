"""Whole runs whose reward asks a judge: killed or not, nothing is asked twice."""

import hashlib
import json
import shutil
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.results.queries import query
from rlcore.rewards.judges.setup import cache_folder, judge_setup, prepare_cache
from rlcore.store.artifacts import ArtifactStore
from tests.flows.small_run import INLINE, SMALL, model_digests, run_small
from tests.rlcore.rewards.judges.server import (
    KEY,
    JudgeServer,
    Reply,
    judge_server,
    nonce_of,
    response_in,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FUNCTIONS = [
    {"name": "tests.flows.small_reward:digits"},
    {"name": "judge", "weight": 0.5, "options": {"judge": "main"}},
]


def by_digest(request: dict[str, Any], number: int) -> Reply:
    """Score a response from 0 to 4 by its digest: equal in every run."""
    del number
    score = hashlib.sha256(response_in(request).encode()).digest()[0] % 5
    return Reply(f"VERDICT {nonce_of(request)}: {score}")


def overrides(server: JudgeServer) -> dict[str, Any]:
    """Return what a small run with the judge at ``server`` sets; it may ask no one else."""
    judge = {
        "url": server.url,
        "model": "judge",
        "template": "Question: {prompt}\n{response}",
        "key_env": "PLANTED_KEY",
        "scale": [0, 4],
        "correct_from": 0.5,
        "max_calls": 400,
        "limits": {"timeout_s": 60.0, "retries": 1},
    }
    return {**INLINE, "reward.functions": FUNCTIONS, "judges.main": judge, "rl.iterations": 3}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's key is in the environment of every run."""
    monkeypatch.setenv("PLANTED_KEY", KEY)


def asked(server: JudgeServer) -> list[str]:
    return [request["messages"][0]["content"] for request in server.requests]


def check_rebuilt(store: Path, given: dict[str, Any], count: int) -> None:
    """Check that a cache that is lost comes back with every answer and call of the run."""
    found = judge_setup(load_recipe("quickstart", {**SMALL, **given}, directory=RECIPES))
    assert found is not None
    setup = replace(found, folder=cache_folder(str(store)))
    texts = "select question, answer from answers order by 1"
    with closing(sqlite3.connect(setup.cache)) as before:
        answers = before.execute(texts).fetchall()
    shutil.rmtree(setup.folder)
    prepare_cache(setup, str(store), lambda line: None)
    with closing(sqlite3.connect(setup.cache)) as after:
        assert after.execute(texts).fetchall() == answers
        calls = after.execute("select run, judge, made from calls").fetchall()
    assert calls == [(setup.run, "main", count)]


def test_a_run_with_a_judge_and_its_reruns(prefect_server: str, tmp_path: Path) -> None:
    """Killed in two phases and then finished, a run has the weights of an uninterrupted one, and
    asks every question once."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with judge_server(by_digest) as server:
        run = run_small(whole, overrides(server))
        assert run.returncode == 0, run.stdout[-4000:]
        first = asked(server)
        assert len(set(first)) == len(first) > 30
        assert set(server.keys) == {f"Bearer {KEY}"}
        run = run_small(whole, overrides(server))
        assert run.returncode == 0, run.stdout[-4000:]
        assert asked(server) == first
    store = ArtifactStore(whole / "runs" / "store")
    parts = query(store, "select parts, verdicts, correct from rewards")
    assert all("judge/main" in json.loads(text) for text in parts["parts"])
    assert parts["verdicts"].null_count() == parts["correct"].null_count() == 0
    shown = query(store, "select count(*) as n from completions where verdicts is not null")
    assert shown["n"][0] > 0
    metrics = query(store, "select distinct name from metrics")["name"].to_list()
    assert "reward/judge/main/mean" in metrics
    check_rebuilt(whole / "runs" / "store", overrides(server), len(first))
    for path in (whole / "runs").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path

    with judge_server(by_digest) as server:
        for point in ("reward", "update"):
            run = run_small(killed, overrides(server), kill_at=point)
            assert run.returncode == -signal.SIGKILL, f"{point}: {run.stdout[-4000:]}"
        run = run_small(killed, overrides(server))
        assert run.returncode == 0, run.stdout[-4000:]
        assert sorted(asked(server)) == sorted(first)
    assert model_digests(killed, "policy") == model_digests(whole, "policy")


def test_a_judge_that_is_killed_in_a_phase_and_comes_back(
    prefect_server: str, tmp_path: Path
) -> None:
    """The run stops with its reason, and continues where it was; what was answered is not lost."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    with judge_server(by_digest) as server:
        run = run_small(whole, overrides(server))
        assert run.returncode == 0, run.stdout[-4000:]
        first = asked(server)

    def dies(request: dict[str, Any], number: int) -> Reply:
        return by_digest(request, number) if number <= 20 else Reply("gone", status=503)

    with judge_server(dies) as server:
        run = run_small(broken, overrides(server))
        assert run.returncode != 0
        assert "judge 'main' answered with status 503 in each of 2 attempts" in run.stdout
        before = asked(server)[:20]
    with judge_server(by_digest) as server:
        run = run_small(broken, overrides(server))
        assert run.returncode == 0, run.stdout[-4000:]
        assert sorted([*before, *asked(server)]) == sorted(first)
    assert model_digests(broken, "policy") == model_digests(whole, "policy")
