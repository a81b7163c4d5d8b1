"""What Ray's own processes know, and that the run continues where one was stopped."""

import logging
import os
import subprocess
import time
from types import SimpleNamespace

import psutil
import pytest

from rlcore.cluster.ray_cluster import RayCluster
from rlcore.cluster.ray_processes import Continued, kept_secrets, rays_processes, without_secrets
from rlcore.cluster.types import Placement

pytestmark = pytest.mark.timeout(300)
PROBE = "tests.rlcore.cluster.probe_worker:Probe"


def test_rays_token_is_no_secret_of_its_own_processes() -> None:
    environment = {"HF_TOKEN": "x" * 20, "RAY_AUTH_TOKEN": "y" * 20, "PATH": "/bin"}
    assert kept_secrets(environment) == {"HF_TOKEN": "x" * 20}


def test_what_ray_starts_lacks_secrets_and_nothing_else() -> None:
    services = SimpleNamespace(ConsolePopen=subprocess.Popen)
    environment = {**os.environ, "HF_TOKEN": "planted-token", "LEFT": "as it is"}
    program = ["sh", "-c", "echo $HF_TOKEN-$LEFT"]
    with without_secrets(services):
        started = services.ConsolePopen(program, env=environment, stdout=subprocess.PIPE)
        assert started.communicate()[0] == b"-as it is\n"
    assert services.ConsolePopen is subprocess.Popen


def test_a_stopped_process_is_named_and_continues(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore.cluster.ray_processes.STOPPED_S", 2.0)
    process = subprocess.Popen(["sleep", "100"])
    continued = Continued([("raylet", process)])
    try:
        _stop(psutil.Process(process.pid))
        _until_running(process.pid)
        assert f"Ray's raylet (process {process.pid}) has been stopped for 2 s" in caplog.text
        process.kill()
        process.wait()
        time.sleep(1.5)  # one that has ended is looked at once more
    finally:
        continued.close()
        process.kill()
    assert [r.levelno for r in caplog.records if "stopped" in r.message] == [logging.ERROR]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gcs_server", "raylet"])
def test_work_continues_after_a_process_of_rays_was_stopped(
    on_ray: RayCluster, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A large argument goes through the raylet, an actor's start through both."""
    (process,) = [p for p in rays_processes() if kind in p.name()]
    first = on_ray.spawn(PROBE, 1, name="first", placement=Placement())
    assert first.start("add", 1).result(60) == 2
    _stop(process)
    second = on_ray.spawn(PROBE, 1, name="second", placement=Placement())
    assert second.start("add", 2).result(200) == 3
    assert first.start("size", bytes(1 << 20)).result(200) == 1 << 20
    _until_running(process.pid)
    assert f"(process {process.pid}) has been stopped for 20 s" in caplog.text


def _stop(process: psutil.Process) -> None:
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)


def _until_running(pid: int) -> None:
    end = time.monotonic() + 120
    while psutil.Process(pid).status() == psutil.STATUS_STOPPED:
        assert time.monotonic() < end, "it was not continued"
        time.sleep(0.1)
