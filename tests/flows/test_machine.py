"""``rl-pipeline doctor``: each lack of a machine is found, with its remedy."""

import os
import shutil
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from flows import local, machine, services
from flows.cli import main
from flows.machine import OK, PROBLEM, WARNING, CheckResult, findings


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], dict[str, CheckResult]]:
    """What is found on this machine for a server in an empty home, the hub left alone."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(local, "HOME", tmp_path)
    monkeypatch.setattr(local, "ENV_FILE", tmp_path / ".env")

    def look() -> dict[str, CheckResult]:
        return {finding.check: finding for finding in findings(tmp_path)}

    return look


def test_every_problem_has_a_remedy(looked: Callable[[], dict[str, CheckResult]]) -> None:
    found = looked()
    assert {"system", "python", "packages", "libraries", "server", "worker", "login"} <= set(found)
    assert {"disk", "memory", "hub", "gpu"} <= set(found)
    for finding in found.values():
        assert (finding.state == OK) == (finding.remedy == ""), finding
    assert found["system"].state == found["python"].state == OK
    assert found["hub"].found == "not asked: HF_HUB_OFFLINE is set"


def test_a_password_that_others_can_read_is_a_problem(
    looked: Callable[[], dict[str, CheckResult]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert looked()["login"].state == OK
    local.ENV_FILE.write_text("PREFECT_API_AUTH_STRING=x")
    local.ENV_FILE.chmod(0o644)
    assert looked()["login"].remedy == f"chmod 600 {local.ENV_FILE}"
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "problem  login: others can read" in printed
    assert f"-> chmod 600 {local.ENV_FILE}" in printed


def test_a_port_that_another_program_has_is_told(
    looked: Callable[[], dict[str, CheckResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind((services.HOST, 0))
        other.listen()
        monkeypatch.setattr(local, "PORT", other.getsockname()[1])
        assert looked()["server"].state == WARNING
    assert looked()["server"].state == OK


@pytest.mark.parametrize(
    ("name", "value", "check", "said"),
    [
        ("DISK_GIB", (1e9, 1e9), "disk", "GiB free in"),
        ("MEMORY_GIB", (1e9, 1e9), "memory", "GiB available"),
        ("SHARED_GIB", (1e9, 1e9), "shared memory", "GiB free in /dev/shm"),
        ("SYSTEMS", ("Linux riscv64",), "system", "Linux"),
        ("PYTHONS", ((3, 10),), "python", "3."),
        ("LIBRARIES", {"libnone.so.1": "libnone1"}, "libraries", "missing: libnone.so.1"),
    ],
)
def test_a_limit_that_is_not_met_is_a_problem(
    name: str,
    value: object,
    check: str,
    said: str,
    looked: Callable[[], dict[str, CheckResult]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, name, value)
    found = looked()[check]
    assert said in found.found
    assert found.state == PROBLEM


def test_packages_are_compared_with_the_pins(
    looked: Callable[[], dict[str, CheckResult]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text("# of a test\nduckdb==0.0.1\n")
    monkeypatch.setattr(machine, "CONSTRAINTS", pins)
    found = looked()["packages"]
    assert found.state == WARNING
    assert found.found.startswith("duckdb ")
    assert found.found.endswith(" instead of 0.0.1")


class _Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.headers.get("Authorization") in (None, "Bearer right")
        self.send_response(200 if known else 401)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.mark.parametrize(
    ("token", "state", "said"),
    [
        ("", OK, "answers; no token"),
        ("right", OK, "takes your token"),
        ("wrong", PROBLEM, "refuses your token"),
    ],
)
def test_the_hub_is_asked_with_the_token(
    token: str,
    state: str,
    said: str,
    looked: Callable[[], dict[str, CheckResult]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = HTTPServer((services.HOST, 0), _Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", f"http://{services.HOST}:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    found = looked()["hub"]
    server.shutdown()
    server.server_close()
    assert (found.state, said in found.found) == (state, True), found
    unreachable = looked()["hub"]
    assert unreachable.state == WARNING
    assert "does not answer" in unreachable.found


def test_gpus_without_their_packages_are_told(
    looked: Callable[[], dict[str, CheckResult]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.1'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert shutil.which("nvidia-smi") == str(command)
    monkeypatch.setattr(machine, "installed", lambda name: None if name == "vllm" else "1")
    assert looked()["gpu"].remedy == "make env EXTRA=gpu"
    command.write_text("#!/bin/sh\nexit 9\n")
    monkeypatch.setattr(machine, "installed", lambda name: "1")
    assert looked()["gpu"].state == PROBLEM
