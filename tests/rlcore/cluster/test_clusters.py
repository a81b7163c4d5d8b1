"""A worker behaves the same in a Ray actor and inline, and every wait ends and names its worker."""

import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
import ray
from ray._private import worker as ray_worker
from ray.actor import ActorClass

from rlcore.cluster.host_settings import RAY, socket_folder
from rlcore.cluster.in_process import InProcessCluster
from rlcore.cluster.ray_cluster import RayCluster
from rlcore.cluster.types import Cluster, Placement, WorkerDied, WorkerTimeout
from schemas.errors import UserError
from tests.listeners import open_to_others
from tests.rlcore.cluster.conftest import SECRET
from tests.strangers import reachable_by_others

pytestmark = pytest.mark.timeout(120)
PROBE = "tests.rlcore.cluster.probe_worker:Probe"
PLAIN = Placement()


@pytest.fixture(params=["in_process", "ray"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    return request.getfixturevalue("on_ray") if request.param == "ray" else InProcessCluster()


def test_calls_are_served_in_order_by_one_object(cluster: Cluster) -> None:
    worker = cluster.spawn(PROBE, 1, name="probe", placement=PLAIN)
    calls = [worker.start("add", n) for n in (1, 2, 3)]
    assert [call.result(60) for call in calls] == [2, 4, 7]


def test_a_user_error_arrives_unchanged(cluster: Cluster) -> None:
    worker = cluster.spawn(PROBE, 1, name="probe", placement=PLAIN)
    with pytest.raises(UserError, match=r"^this is refused; ask for something else$"):
        worker.start("refuse").result(60)


def test_an_error_arrives_as_it_was_raised(cluster: Cluster) -> None:
    """Of Ray's class its first line is a number of process, actor and object."""
    worker = cluster.spawn(PROBE, 1, name="probe", placement=PLAIN)
    with pytest.raises(ValueError, match=r"^the first line\nand another$") as error:
        worker.start("fail").result(60)
    assert type(error.value) is ValueError


def test_a_program_that_a_worker_started_can_be_interrupted(cluster: Cluster) -> None:
    worker = cluster.spawn(PROBE, 1, name="probe", placement=PLAIN)
    assert worker.start("interrupted").result(60) == -signal.SIGINT


def test_a_worker_without_gpus_sees_none(on_ray: RayCluster) -> None:
    """A reward's model would lie beside learner and engine."""
    worker = on_ray.spawn(PROBE, 1, name="probe", placement=PLAIN)
    assert worker.start("variable", "CUDA_VISIBLE_DEVICES").result(60) == ""


SHORT_OF_MEMORY = """
from rlcore.cluster.ray_cluster import RayCluster
from rlcore.cluster.types import Placement, WorkerDied, ran_out

cluster = RayCluster()
probe = "tests.rlcore.cluster.probe_worker:Probe"
worker = cluster.spawn(probe, 1, name="probe", placement=Placement())
try:
    worker.start("sleep", 100.0).result(120)
except WorkerDied as error:
    print(ran_out(error), error, flush=True)
cluster.close()
"""


def test_who_is_killed_for_memory_has_died(ray_home: Path) -> None:
    """Else another rank's lost connection was told, and no restart took half of the tokens."""
    ended = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY],
        env={**os.environ, "HOME": str(ray_home), "RAY_memory_usage_threshold": "0.02"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=150,
        check=True,
    )
    assert re.match(r"True worker 'probe' died during sleep: .* low on memory", ended.stdout)


def test_more_gpus_than_there_are_is_refused_before_any_worker(cluster: Cluster) -> None:
    """Ray would wait for them forever."""
    with pytest.raises(UserError, match=r"hardware needs \d+ GPUs but"):
        cluster.place(Placement(cluster.num_gpus() + 1), 1)


def test_environment_is_set_before_the_worker_imports(on_ray: RayCluster) -> None:
    """OpenMP and vLLM read theirs once, at import."""
    worker = on_ray.spawn(PROBE, 0, name="probe", placement=Placement(env={"PROBE": "early"}))
    assert worker.start("environment").result(60) == "early"


def test_a_process_is_titled_after_what_it_runs(on_ray: RayCluster) -> None:
    """Whoever looks at a busy machine sees an engine and a learner, and chaos finds its victims."""
    worker = on_ray.spawn(PROBE, 0, name="probe", placement=PLAIN)
    actor = psutil.Process(worker.start("step", [0.0]).result(60))
    pending = worker.start("sleep", 1.0)
    assert re.fullmatch(r"ray::Probe(\.\w+)?", actor.cmdline()[0])
    pending.result(60)
    assert re.fullmatch(r"ray::Probe(\.\w+)?", actor.cmdline()[0])


def test_workers_have_the_secrets_and_no_file_of_ray_has(on_ray: RayCluster) -> None:
    """What Ray forwards it logs, and its logs stay."""
    worker = on_ray.spawn(PROBE, 0, name="probe", placement=PLAIN)
    assert worker.start("variable", "HF_TOKEN").result(60) == SECRET
    assert ray_worker._global_node is not None
    folder = Path(ray_worker._global_node.get_session_dir_path())
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_no_process_of_rays_own_has_a_secret(on_ray: RayCluster) -> None:
    """Of its head, its agents and its monitor none needs a key of the hub."""
    on_ray.spawn(PROBE, 0, name="probe", placement=PLAIN).start("add", 1).result(60)
    own = {
        process.cmdline()[0]: process.environ()
        for process in psutil.Process().children(recursive=True)
        if not process.cmdline()[0].startswith("ray::") and "/ray/" in " ".join(process.cmdline())
    }
    assert len(own) >= 2
    assert not [name for name, variables in own.items() if SECRET in variables.values()]
    assert os.environ["HF_TOKEN"] == SECRET, "this process's own was taken away"


def test_rays_token_is_readable_by_its_owner_only(on_ray: RayCluster) -> None:
    worker = on_ray.spawn(PROBE, 0, name="probe", placement=PLAIN)
    home = worker.start("variable", "HOME").result(60)
    assert stat.S_IMODE((Path(home) / ".ray" / "auth_token").stat().st_mode) == 0o600
    assert worker.start("variable", "RAY_AUTH_MODE").result(60) == "token", "none is asked for"


def test_ray_refuses_clients_without_a_token(on_ray: RayCluster) -> None:
    on_ray.spawn(PROBE, 0, name="probe", placement=PLAIN).start("add", 1).result(60)
    node = ray_worker._global_node
    assert node is not None
    call = "import sys, ray._raylet as r; r.GcsClient(sys.argv[1]).internal_kv_keys(b'', None, 5)"
    for token, refused in (("a guess", True), (None, False)):
        environment = {**os.environ, "HOME": str(Path(node.get_session_dir_path()) / "nobody")}
        if token is None:
            environment["RAY_AUTH_TOKEN_PATH"] = str(Path(os.environ["HOME"], ".ray/auth_token"))
        else:
            environment["RAY_AUTH_TOKEN"] = token
        asked = subprocess.run(
            [sys.executable, "-c", call, node.gcs_address],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ("InvalidAuthToken" in asked.stderr) == refused, asked.stderr
    listening = {
        connection.laddr.port: " ".join(process.cmdline())
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening
    for port, command in listening.items():
        if "/ray/" in command or "ray::" in command:
            # The monitor takes no commands; it serves metrics of the autoscaler, which is not used.
            assert _status(port) in (401, None, 200 if "monitor.py" in command else None), command


def _status(port: int) -> int | None:
    """Return what a request without a token is answered; None by gRPC, which is no HTTP/1.1."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
            return answer.status
    except HTTPError as refusal:
        return refusal.code
    except HTTPException:
        return None


def test_no_secret_is_forwarded_to_an_existing_cluster(
    on_ray: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    options = ActorClass.options

    def seen(self: Any, **given: Any) -> Any:
        asked.append(given)
        return options(self, **given)

    monkeypatch.setattr(ActorClass, "options", seen)
    monkeypatch.setattr(on_ray, "_local", False)
    monkeypatch.setenv("HF_HOME", "/models")
    on_ray.spawn(PROBE, 0, name="probe", placement=PLAIN).stop()
    assert asked[0]["runtime_env"]["env_vars"]["HF_HOME"] == "/models"
    assert SECRET not in str(asked)


def test_on_a_cluster_of_ones_own_ranks_meet_at_a_port(
    on_ray: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on_ray.rendezvous(PLAIN).startswith("file://")
    monkeypatch.setattr(on_ray, "_local", False)
    assert on_ray.rendezvous(PLAIN).startswith("tcp://")


def test_our_own_ray_listens_on_loopback_only(on_ray: RayCluster) -> None:
    on_ray.spawn(PROBE, 0, name="probe", placement=PLAIN).start("add", 1).result(60)
    assert open_to_others() == set()


def test_a_constructor_that_fails_says_why_at_the_first_call(cluster: Cluster) -> None:
    worker = cluster.spawn(PROBE, -1, name="probe", placement=PLAIN)
    with pytest.raises(UserError, match="probe value = -1"):
        worker.start("add", 1).result(60)


def test_a_wait_ends_with_the_name_of_whom_it_waited_for(on_ray: RayCluster) -> None:
    worker = on_ray.spawn(PROBE, 0, name="slow-probe", placement=PLAIN)
    worker.start("add", 0).result(60)
    with pytest.raises(WorkerTimeout, match="'slow-probe' did not finish sleep within 1 s"):
        worker.start("sleep", 30).result(1)
    worker.stop()


def test_a_dead_worker_is_distinguished_from_a_slow_one(on_ray: RayCluster) -> None:
    worker = on_ray.spawn(PROBE, 0, name="mortal-probe", placement=PLAIN)
    with pytest.raises(WorkerDied, match="'mortal-probe' died during die"):
        worker.start("die").result(60)


def test_of_a_worker_that_was_stopped_nobody_says_that_it_died(
    on_ray: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray spoke of the OOM killer after every stage, as a learner ended before Ray's kill did."""
    kill, said, timers = ray.kill, list[str](), list[threading.Timer]()

    def late(*given: Any, **options: Any) -> None:
        timers.append(threading.Timer(0.5, kill, given, options))
        timers[-1].start()

    def listen(data: dict[str, Any], **_: Any) -> None:
        said.extend(data["lines"])

    monkeypatch.setattr(ray, "kill", late)
    monkeypatch.setattr(ray_worker, "print_to_stdstream", listen)
    placement = Placement(env={"PROBE": "labelled"})
    stopped, killed = (on_ray.spawn(PROBE, 0, name="p", placement=placement) for _ in range(2))
    pids = [worker.start("step", [0.0]).result(60) for worker in (stopped, killed)]
    stopped.stop()
    timers[0].join()
    os.kill(pids[1], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while f"Worker PID: {pids[1]}" not in "".join(said):  # what Ray says comes in order
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    assert f"Worker PID: {pids[0]}" not in "".join(said)


WHILE_RAY = """
import os, signal, sys, threading, time
import rlcore.cluster.ray_cluster
from rlcore.cluster.lazy import LazyCluster
from rlcore.cluster.types import Placement
from schemas.hardware import HardwareSection

class Cancelled(BaseException): pass

def cancel(number, frame): raise Cancelled

signal.signal(signal.SIGTERM, cancel)
cluster = LazyCluster(HardwareSection())
if "starts" not in sys.argv:
    cluster.get().num_gpus()
threading.Timer(8.0 if "works" in sys.argv else 0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
try:
    cluster.get().num_gpus()
    if "works" in sys.argv:
        probe = "tests.rlcore.cluster.probe_worker:Probe"
        worker = cluster.get().spawn(probe, 1, name="probe", placement=Placement())
        worker.start("add", 1).result(60)
        worker.start("sleep", 60.0).result(90)
    threading.Event().wait(60)
except Cancelled:
    time.sleep(4)  # an end that takes its time
    print("cancelled", flush=True)
cluster.close()
print("closed", flush=True)
os._exit(0 if signal.getsignal(signal.SIGTERM) is cancel else 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ray", ["starts", "runs", "works"])
def test_a_run_is_cancelled_while_ray(ray: str, ray_home: Path) -> None:
    """Ray replaced the handler of SIGTERM by one that ends the process, and had another beside it
    that aborts three seconds later: the run counted as crashed, or stayed Cancelling for ever."""
    ended = subprocess.run(
        [sys.executable, "-c", WHILE_RAY, ray],
        env={**os.environ, "HOME": str(ray_home)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "cancelled\nclosed\n"), ended.stderr[-3000:]


def test_ray_does_not_open_the_folder_of_our_sockets_to_others(on_ray: Cluster) -> None:
    """It makes what it is given writable for everybody, and the next run refuses such a folder."""
    del on_ray
    folder = socket_folder()
    assert folder is not None
    assert list(reachable_by_others(Path(folder))) == []
    assert any(Path(folder, RAY).glob("session_*"))
