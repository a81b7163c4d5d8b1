"""Alerts of whole runs: one for a planted finding, none for a quiet run, and no bit or second of a
run depends on the receiver. That of a kill -9 is in test_page_of_deployed_run.py."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime.webhook import GIVE_UP_S, URL
from tests.flows.small_run import INLINE, model_digests, run_small, summary_of
from tests.tasks.runtime.test_webhook import Receiver

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
# A learning rate at which the policy says the one thing that is rewarded after a few updates.
COLLAPSE = {
    "reward.functions": [{"name": "tests.flows.small_reward:sevens"}],
    "rl.update.optimizer.lr": 0.02,
    "rl.iterations": 20,
    "rl.validation.every": 100,
}


@pytest.fixture(params=[200, 500, None], ids=["answers", "fails", "hangs"])
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    one = Receiver(lambda number: request.param)
    monkeypatch.setenv(URL, one.url)
    yield one
    one.close()


@pytest.fixture(scope="module")
def collapsed(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The folder of a run without a receiver, and its seconds."""
    return timed(tmp_path_factory.mktemp("alone"))


def timed(directory: Path) -> tuple[Path, float]:
    begun = time.monotonic()
    return run(directory, COLLAPSE), time.monotonic() - begun


def run(directory: Path, overrides: dict[str, Any], code: int = 0) -> Path:
    ended = run_small(directory, {**INLINE, **overrides})
    assert ended.returncode == code, ended.stdout[-4000:]
    return directory


def test_a_planted_collapse_is_told_of_once_whatever_the_receiver_does(
    receiver: Receiver, collapsed: tuple[Path, float], tmp_path: Path
) -> None:
    alone, usual = collapsed
    told, seconds = timed(tmp_path)
    # Each alert to a receiver that fails or hangs is tried for a minute.
    assert seconds < max(3 * usual, usual + GIVE_UP_S), "the run waited for the receiver"
    found = [row["check"] for row in summary_of(told)["diagnostics"]]
    assert found.count("entropy_collapse") == 1
    # A receiver that fails is asked again for the same alert.
    bodies = receiver.wait_for(len(found))
    began = {(body["check"], body["began"]) for body in bodies}
    assert sorted(check for check, _ in began) == sorted(found)
    assert {body["event"] for body in bodies} == {"rl-pipeline.finding.began"}
    assert {body["flow_run"] for body in bodies} == {summary_of(told)["flow_run_id"]}
    assert model_digests(told, "export") == model_digests(alone, "export")
    assert holding(receiver.url, tmp_path, Path(os.environ["PREFECT_HOME"])) == []


def holding(secret: str, *folders: Path) -> list[str]:
    """Return the files, Prefect's database among them, that hold ``secret``."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert any(path.name.startswith("prefect.db") for path in files)
    return [str(path) for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.parametrize("receiver", [200], indirect=True)
def test_a_quiet_run_tells_nothing_and_a_failed_one_that_it_failed(
    receiver: Receiver, prefect_server: str, tmp_path: Path
) -> None:
    run(tmp_path, {"rl.iterations": 2})  # fewer than any check needs
    assert receiver.wait_for(1, limit_s=3.0) == []
    broken = {"reward.functions": [{"name": "tests.flows.small_reward:no_such"}]}
    run(tmp_path, broken, code=1)
    (body,) = receiver.wait_for(1)
    assert (body["event"], body["level"]) == ("rl-pipeline.run.failed", "error")
    assert "no_such" in body["text"]
