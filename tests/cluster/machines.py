"""Two machines out of one: a second network namespace, joined to this one by a virtual cable, with
its own processes, /dev/shm, cache and Ray folder. A Ray cluster with a token spans both.

The first machine is the namespace of the test itself, so that what runs there needs nothing
special. What the first writes below ``Machines.first`` the second cannot see.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from flows import services

ROOT = Path(__file__).parents[2]
START_S = 300.0
FIRST, SECOND = "10.231.{0}.1", "10.231.{0}.2"
OBJECT_STORE = 1 << 30  # bytes, of Ray on each machine
UNSHARE = ["unshare", "--pid", "--fork", "--mount", "--uts", "--mount-proc", "--kill-child"]
# ``$1``: what only the first machine has.
SECOND_MACHINE = """
hostname second
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs "$1"
shift
exec "$@"
"""


@cache
def refusal() -> str:
    """Return why this process can have no second machine; "" where it can."""
    if os.geteuid() != 0:
        return "only root may join two networks"
    try:
        subprocess.run([*UNSHARE, "true"], check=True, capture_output=True, text=True)
        for line in (*_cable(), _UNPLUGGED):
            _ip(line)
    except FileNotFoundError as missing:
        return f"{missing.filename} is not installed"
    except subprocess.CalledProcessError as refused:
        return refused.stderr.strip().rpartition("\n")[2]
    return ""


# The namespace has a name, and so stays when its last process ends, as cables do.
NAME = f"rlp{os.getpid()}"
_UNPLUGGED = f"netns delete {NAME}"


def _cable(first: str = "10.231.254.1", second: str = "10.231.254.2") -> list[str]:
    """Return what makes the second network and joins it to this one, as arguments of ``ip``."""
    return [
        f"netns add {NAME}",
        f"link add {NAME} type veth peer name cable netns {NAME}",
        f"address add {first}/30 dev {NAME}",
        f"link set {NAME} up",
        f"-n {NAME} address add {second}/30 dev cable",
        f"-n {NAME} link set cable up",
        f"-n {NAME} link set lo up",
        f"-n {NAME} route add default via {first}",
    ]


def _ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True, capture_output=True, text=True)


@dataclass
class Machines:
    """``first``, ``second``: folders that hold what is theirs alone, the home in each among it.
    ``addresses`` of both, ``port`` of Ray's head, which is on the first, and its ``token``."""

    first: Path
    second: Path
    addresses: tuple[str, str]
    port: int
    token: str
    cpus: int
    _head: subprocess.Popen[bytes] | None = None
    _raylet: subprocess.Popen[bytes] | None = None

    @property
    def ray_address(self) -> str:
        """Return the head's host:port."""
        return f"{self.addresses[0]}:{self.port}"

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment of a process on the machine of ``folder``."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "XDG_", "AWS_"))}
        own = {"HOME": str(folder / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return {**kept, **own, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}

    def start_second(self) -> None:
        """Let the second machine join the cluster, for the first time or after it was killed."""
        _ip(f"-n {NAME} link set cable up")
        raylet = _ray(self.second, self.addresses[1], self.cpus, f"--address={self.ray_address}")
        inside = ["bash", "-ec", SECOND_MACHINE, "machine", str(self.first), *raylet]
        command = ["ip", "netns", "exec", NAME, *UNSHARE, *inside]
        self._raylet = _started(self, self.second, command)
        _wait_for(self.second.with_suffix(".log"), self._raylet)

    def kill_second(self) -> None:
        """End all processes of the second machine at once, and its network, as a power failure
        does."""
        assert self._raylet is not None
        _ip(f"-n {NAME} link set cable down")
        for process in psutil.Process(self._raylet.pid).children():  # its init
            process.send_signal(signal.SIGKILL)
        self._raylet.wait(60)


@contextmanager
def two_machines(cpus: int = 1) -> Iterator[Machines]:
    """Yield a cluster of two machines of ``cpus`` each."""
    number = os.getpid() % 250
    folder = Path(tempfile.mkdtemp(prefix="rlm-", dir="/tmp"))  # short: sockets have short paths
    addresses = FIRST.format(number), SECOND.format(number)
    made = Machines(
        first=folder / "a",
        second=folder / "b",
        addresses=addresses,
        port=services.free_port(),
        token=secrets.token_hex(32),
        cpus=cpus,
    )
    for one in (made.first, made.second):
        (one / "home").mkdir(parents=True)
    try:
        for line in _cable(*addresses):
            _ip(line)
        options = (f"--port={made.port}", "--head", "--include-dashboard=false")
        head = _ray(made.first, addresses[0], cpus, *options)
        made._head = _started(made, made.first, head)
        _wait_for(folder / "a.log", made._head)
        made.start_second()
        yield made
    finally:
        for process in (made._raylet, made._head):
            if process is not None:
                _end(process)
        subprocess.run(["ip", *_UNPLUGGED.split()], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def _started(made: Machines, folder: Path, command: list[str]) -> "subprocess.Popen[bytes]":
    """Start the Ray of a machine, whose output is beside its folder."""
    with folder.with_suffix(".log").open("w") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env=made.environment(folder),
            start_new_session=True,
        )


def _ray(folder: Path, address: str, cpus: int, *options: str) -> list[str]:
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", *options]
    command += [f"--node-ip-address={address}", f"--num-cpus={cpus}", "--disable-usage-stats"]
    return [*command, f"--temp-dir={folder / 'ray'}", f"--object-store-memory={OBJECT_STORE}"]


def _wait_for(log: Path, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START_S
    while "This command will now block" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(psutil.NoSuchProcess):
        started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
        for one in started:  # all that they hold lies in the folder, which is removed
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait(60)
