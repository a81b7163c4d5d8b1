"""A worker of a shared server: what it needs is said before anything is started.

tests/infra/test_compose.py starts one, which deploys the recipes and executes a run.
"""

from pathlib import Path

import pytest

from flows.cli import main
from flows.commands import worker
from flows.services import ServiceError, free_port
from schemas.errors import UserError

pytestmark = pytest.mark.timeout(60)


def prepare(kind: str = "process", template: Path | None = None) -> list[str]:
    return worker.prepare(runs=1, kind=kind, job_template=template)


def test_address_and_password_are_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "")
    assert main(["worker"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: PREFECT_API_URL and PREFECT_API_AUTH_STRING not set: a worker")


def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SERVER_S", 0.3)
    monkeypatch.setattr(worker, "LOOK_S", 0.1)
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    with pytest.raises(ServiceError, match=r"did not answer within 0 s \(.*refused.*\); start it"):
        prepare()


def test_a_wrong_password_is_not_waited_for(
    prefect_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:guess")
    with pytest.raises(UserError, match="refuses the password of PREFECT_API_AUTH_STRING") as told:
        prepare()
    assert "guess" not in str(told.value)


def test_a_server_that_does_not_know_its_name_says_so(
    prefect_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = prefect_server.replace("127.0.0.1", "[::ffff:127.0.0.1]")
    monkeypatch.setenv("PREFECT_API_URL", other)
    with pytest.raises(UserError, match=r"refuses this address: .*start it with --name"):
        prepare()


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("kubernetes", None, "--job-template FILE goes with --type kubernetes"),
        ("process", "a: 1", "--job-template FILE goes with --type kubernetes"),
        ("kubernetes", "a: [", "cannot be read"),
        ("kubernetes", "spec: 1", "needs job_configuration and variables, and nothing else"),
    ],
)
def test_a_job_template_goes_with_kubernetes(
    kind: str, text: str | None, said: str, tmp_path: Path
) -> None:
    file = None
    if text is not None:
        file = tmp_path / "template.yaml"
        file.write_text(text)
    with pytest.raises(UserError, match=said):
        prepare(kind, file)
