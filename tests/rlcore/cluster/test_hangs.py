"""A worker that is alive but makes no progress, and a dead Ray, are named within seconds."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore.cluster import watch
from rlcore.cluster.ray_cluster import RayCluster, RayWorker
from rlcore.cluster.types import Placement, WorkerHung, WorkerTimeout

pytestmark = pytest.mark.timeout(180)
PROBE = "tests.rlcore.cluster.probe_worker:Probe"
ROOT = Path(__file__).parents[3]

# Kills one of Ray's own processes during a call, prints the error, and ends.
WITHOUT_RAY = """
import json, os, signal, sys, time
from rlcore.cluster.ray_cluster import RayCluster
from rlcore.cluster.types import Placement, WorkerDied
import ray._private.worker
kind = sys.argv[1]
cluster = RayCluster()
target = "tests.rlcore.cluster.probe_worker:Probe"
worker = cluster.spawn(target, 0, name="p", placement=Placement())
worker.start("step", [0.1]).result(60)
call = worker.start("step", [120.0])
(process,) = ray._private.worker._global_node.all_processes[kind]
os.kill(process.process.pid, signal.SIGKILL)
begun = time.monotonic()
try:
    call.result(100)
except WorkerDied as error:
    said = str(error)
named_s = time.monotonic() - begun
cluster.close()
print("\\n" + json.dumps([said, named_s, time.monotonic() - begun]))
"""


@pytest.fixture
def worker(on_ray: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayWorker]:
    monkeypatch.setattr(on_ray, "stall_s", 3.0)
    worker = on_ray.spawn(PROBE, 0, name="probe", placement=Placement())
    for _ in range(2):
        worker.start("step", [0.1]).result(60)
    yield worker
    worker.stop()


@pytest.mark.slow
def test_a_call_that_hangs_is_named_although_its_process_is_alive(worker: RayWorker) -> None:
    with pytest.raises(
        WorkerHung, match=r"worker 'probe' hangs .process \d+.*no progress.*in step"
    ):
        worker.start("step", [0.1, 100]).result(60)


@pytest.mark.slow
def test_a_call_that_progresses_slowly_is_not(worker: RayWorker) -> None:
    assert worker.start("step", [2.2] * 3).result(60) > 0


@pytest.mark.slow
def test_what_is_bounded_by_a_timeout_alone_is_not(worker: RayWorker) -> None:
    with pytest.raises(WorkerTimeout, match="did not finish sleep within 5 s"):
        worker.start("sleep", 100).result(5)


@pytest.mark.slow
def test_a_stopped_process_is_named(worker: RayWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STOPPED_S", 2.0)
    pid = worker.start("step", []).result(60)
    call = worker.start("sleep", 100)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerHung, match=rf"has been stopped .process {pid}. .*SIGSTOP.*in sleep"):
        call.result(60)
    os.kill(pid, signal.SIGCONT)


def test_what_a_call_notes_is_logged(worker: RayWorker, caplog: pytest.LogCaptureFixture) -> None:
    worker.start("step", [1.5], "three rows were lost").result(60)
    assert "probe: three rows were lost" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gcs_server", "raylet"])
def test_a_failure_of_ray_itself_is_named(kind: str) -> None:
    """Ray alone would end this process after a minute, without a message."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY, kind],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said, named_s, closed_s = json.loads(run.stdout.splitlines()[-1])
    assert said.startswith(f"Ray's {kind} (process ")
    assert "ended while worker 'p' was in step" in said
    assert named_s < 10
    assert closed_s < 45
    assert run.returncode == 0
