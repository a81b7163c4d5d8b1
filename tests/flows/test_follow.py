"""The terminal shows a run as it goes, and its exit code can be trusted."""

import io
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from httpx import ConnectError
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.logging.handlers import APILogHandler
from rich.console import Console

from flows.follow import create_run, follow, patient_answer
from schemas.errors import UserError

pytestmark = pytest.mark.timeout(120)

SUMMARY = {
    "recipe": "quickstart",
    "accuracy": {"base": 0.002, "sft": 0.61, "rl": 0.994},
    "seconds": {"prepare_data": 8.1, "rl": 92.4},
    "tokens_per_s": {"rollout": 11000.0},
    "export": "/data/export/abc",
}


@task
def sft(recipe: str) -> None:
    from prefect.logging import get_run_logger

    get_run_logger().warning(f"training {recipe}")


@flow(name="follow-test")
def pipeline(recipe: str, fail: bool = False) -> str:
    from prefect.runtime import flow_run

    sft(recipe)
    if fail:
        raise UserError("rl.iterations = -1 must be >= 1; raise it")
    return str(flow_run.id)


def _follow(flow_run_id: UUID, root: Path) -> tuple[int, str]:
    APILogHandler().flush()  # as a flow run's process does when it ends
    output = io.StringIO()
    console = Console(file=output, width=200)
    code = follow(flow_run_id, root=root, ui_url="http://ui", console=console)
    return code, output.getvalue()


def test_completed_run_ends_in_its_table_and_0(prefect_server: str, tmp_path: Path) -> None:
    flow_run_id = pipeline("quickstart")
    folder = tmp_path / "runs" / f"quickstart-{flow_run_id[:8]}"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    code, text = _follow(UUID(flow_run_id), tmp_path)
    assert code == 0
    assert "training quickstart" in text
    assert "0.994" in text
    assert "+0.384" in text
    assert f"http://ui/runs/flow-run/{flow_run_id}" in text


def test_failed_run_ends_in_its_sentence_and_1(prefect_server: str, tmp_path: Path) -> None:
    state = pipeline("quickstart", fail=True, return_state=True)
    assert state.state_details.flow_run_id is not None
    code, text = _follow(state.state_details.flow_run_id, tmp_path)
    assert code == 1
    assert "Failed: rl.iterations = -1 must be >= 1; raise it" in text
    assert "Traceback" not in text


def test_a_server_that_went_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to end in a traceback while the run continued unseen."""
    monkeypatch.setattr("flows.follow.POLL_S", 0.01)
    output = io.StringIO()
    answers = iter([ConnectError("refused"), ConnectError("refused"), "the run"])

    def ask() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patient_answer(ask, Console(file=output, width=200)) == "the run"
    assert output.getvalue().count("The Prefect server does not answer; `make up`") == 1
    assert "answers again" in output.getvalue()
    monkeypatch.setattr("flows.follow.SERVER_PATIENCE_S", 0.0)
    answers = iter([ConnectError("refused")] * 5)
    with pytest.raises(UserError, match="did not answer for 0 s; `make up` starts it"):
        patient_answer(ask, Console(file=output))


def test_dead_worker_is_named(prefect_server: str, tmp_path: Path) -> None:
    with get_client(sync_client=True) as client:
        waiting = client.create_flow_run(pipeline, parameters={"recipe": "quickstart"})
    with pytest.raises(UserError, match=r"The worker ended while .*; see .*worker\.log"):
        follow(
            waiting.id,
            root=tmp_path,
            ui_url="http://ui",
            worker_alive=lambda: False,
            worker_log=tmp_path / "worker.log",
            console=Console(file=io.StringIO()),
        )


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'quickstrat' has no deployment.*did you mean 'quickst"):
        create_run("quickstrat", known=["gsm8k-grpo", "quickstart"])
