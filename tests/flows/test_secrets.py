"""What a run's own functions say of a secret is in nothing that the run writes."""

import json
import os
import secrets
from pathlib import Path

import pytest
from prefect.client.schemas.sorting import FlowRunSort

from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from tests.flows.small_run import INLINE, SMALL, run_recipe

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
PLANTED = "planted-" + secrets.token_hex(16)
TELLING = """
import logging, os
import numpy as np

def reward(prompt, response):
    if len(response) % 2:
        raise ValueError(f"no answer to {os.environ['PLANTED_TOKEN']}")
    return 0.5

def advantages(batch):
    logging.getLogger("rlcore.telling").warning("called %s", f"https://me:{SAID}@host/v1")
    if not hasattr(advantages, "called"):
        advantages.called = True
        return batch.sequence_scores()
    raise ConnectionError(f"https://me:{SAID}@host/v1 refuses {SAID}")

SAID = os.environ.get("PLANTED_TOKEN", "")
"""


def test_no_log_state_page_report_or_record_of_a_run_holds_one(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward function and an estimator that repeat it, in rows that are lost and in the error
    that ends the run."""
    monkeypatch.setenv("PLANTED_TOKEN", PLANTED)
    (tmp_path / "telling.py").write_text(TELLING)
    own = {
        "reward.functions": [{"name": "telling:reward"}],
        "reward.env": ["PLANTED_TOKEN"],
        "reward.max_error_fraction": 1.0,
        "rl.algorithm.advantage": "telling:advantages",
        "rl.algorithm.kl.where": "none",
    }
    arguments = ["", "quickstart", json.dumps({**SMALL, **INLINE, **own})]
    run = run_recipe(tmp_path, arguments)
    assert run.returncode != 0
    assert "ConnectionError: https://***@host/v1 refuses ***" in run.stdout, run.stdout[-4000:]
    assert "called https://***@host/v1" in run.stdout
    rows = query(ArtifactStore(tmp_path / "runs" / "store"), "select detail from rewards")
    assert "ValueError: no answer to *** (telling.py line 7)" in set(rows["detail"])
    home = Path(os.environ["PREFECT_HOME"])
    held = [
        str(path)
        for folder in (tmp_path, home)
        for path in folder.rglob("*")
        if path.is_file() and PLANTED.encode() in path.read_bytes()
    ]
    assert held == []


def test_prefect_keeps_what_it_was_asked_for(prefect_server: str, tmp_path: Path) -> None:
    """A limit, told in docs/do/secure.md: the refusal hides it, and Prefect's database has it."""
    from prefect.client.orchestration import get_client

    path = "https://me:hunter22@host/rows.jsonl"
    asked = {**SMALL, "data.sources": [{"type": "file", "path": path}]}
    run = run_recipe(tmp_path, ["", "quickstart", json.dumps(asked)])
    said = "data.sources.0.path holds a URL with user and password, and a recipe is recorded"
    assert said in run.stdout
    assert "hunter22" not in run.stdout
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(sort=FlowRunSort.EXPECTED_START_TIME_DESC)
    # Runs of other tests may not have started yet, or be newer.
    ours = [run for run in runs if path in str(run.parameters)]
    assert [run.parameters["overrides"]["data.sources"][0]["path"] for run in ours] == [path]
    assert "hunter22" not in str(ours[0].state)
