"""Who is told of a run's end, and how often."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Crashed, Failed

from rlcore.diagnostics.watch import Finding
from tasks.runtime.alerts import alert_end, alert_finding
from tasks.runtime.webhook import LEAST, URL
from tests.tasks.runtime.test_webhook import Receiver

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("prefect_server")]


class Run:
    def __init__(self, parent: Any = None) -> None:
        self.id, self.parent_task_run_id = uuid4(), parent
        self.name, self.parameters = "quickstart", {"recipe": "quickstart"}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Receiver]:
    one = Receiver()
    monkeypatch.setenv(URL, one.url)
    monkeypatch.setenv(LEAST, "info")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield one
    one.close()


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (Failed(message="no such key"), "rl-pipeline.run.failed"),
        (Crashed(message="exit code -9"), "rl-pipeline.run.crashed"),
    ],
    ids=["failed", "crashed"],
)
def test_the_end_of_a_run_is_told_once(receiver: Receiver, state: State, event: str) -> None:
    """Prefect may call its hooks twice."""
    run = Run()
    alert_end(flow=None, flow_run=run, state=state)
    alert_end(flow=None, flow_run=run, state=state)
    alert_end(flow=None, flow_run=Run(parent=uuid4()), state=state)
    alert_end(flow=None, flow_run=(other := Run()), state=state)
    bodies = receiver.wait_for(2)
    assert {body["flow_run"] for body in bodies} == {str(run.id), str(other.id)}
    assert {body["event"] for body in bodies} == {event}
    assert str(state.message) in bodies[0]["text"]


def test_a_finding_is_told_of_when_it_begins_and_when_it_is_over(receiver: Receiver) -> None:
    began = Finding("entropy_collapse", "warning", 7, None, 0.05, "entropy has fallen", "lower lr")
    over = Finding("entropy_collapse", "warning", 7, 12, 0.05, "entropy has fallen", "lower lr")
    alert_finding("quickstart", "the run's id", began)
    alert_finding("quickstart", "the run's id", over)
    told = {body["event"]: body for body in receiver.wait_for(2)}
    first, last = told["rl-pipeline.finding.began"], told["rl-pipeline.finding.ended"]
    assert "entropy has fallen (entropy_collapse): lower lr" in first["text"]
    assert first["flow_run"] == last["flow_run"] == "the run's id"
    assert (first["level"], last["level"], last["ended"]) == ("warning", "info", "12")


def test_an_alert_that_cannot_be_sent_ends_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(LEAST, "loud")
    alert_end(flow=None, flow_run=Run(), state=Failed(message="no such key"))
    assert "RL_PIPELINE_WEBHOOK_LEVEL = 'loud' is no level" in caplog.text
