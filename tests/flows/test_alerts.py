"""Alerts of whole runs: one for a planted finding, none for a quiet run, and no bit or second of a
run depends on the receiver. That of a kill -9 is in test_page_of_deployed_run.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlcore.webhook import URL
from tests.flows.small_run import INLINE, model_digests, run_small, summary_of
from tests.rlcore.test_webhook import Receiver

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
# A learning rate at which the policy says one thing after a few updates.
COLLAPSE = {"rl.update.optimizer.lr": 0.02, "rl.iterations": 10, "rl.validation.every": 100}


@pytest.fixture(params=[200, 500, None], ids=["answers", "fails", "hangs"])
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    one = Receiver(lambda number: request.param)
    monkeypatch.setenv(URL, one.url)
    yield one
    one.close()


@pytest.fixture(scope="module")
def collapsed(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("alone"), COLLAPSE)


def run(directory: Path, overrides: dict[str, Any], code: int = 0) -> Path:
    ended = run_small(directory, {**INLINE, **overrides})
    assert ended.returncode == code, ended.stdout[-4000:]
    return directory


def test_a_planted_collapse_is_told_of_once_whatever_the_receiver_does(
    receiver: Receiver, collapsed: Path, tmp_path: Path
) -> None:
    told = run(tmp_path, COLLAPSE)
    found = [row["check"] for row in summary_of(told)["diagnostics"]]
    assert found.count("entropy_collapse") == 1
    # A receiver that fails is asked again for the same alert.
    bodies = receiver.wait_for(len(found))
    began = {(body["check"], body["began"]) for body in bodies}
    assert sorted(check for check, _ in began) == sorted(found)
    assert {body["event"] for body in bodies} == {"rl-pipeline.finding.began"}
    assert model_digests(told, "export") == model_digests(collapsed, "export")
    secret = receiver.url.encode()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes(), path


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
