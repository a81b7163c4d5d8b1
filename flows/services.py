"""Long-lived processes of this project: started detached, found again by pid file, ended by pid.

A pid file is valid only if the process's start time matches the file, since pids are reused.
"""

import fcntl
import hmac
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from rlcore.recipes.redaction import secrets_of
from schemas.errors import UserError

HOST = "127.0.0.1"
PRIVATE = 0o077  # the umask of what this project starts
_PORT = "port"  # the file in a home that keeps its server's, while it is down too
# Variables that differ between terminals and do not affect a service.
OF_THE_SHELL = {"_", "PWD", "OLDPWD", "SHLVL", "PS1", "COLUMNS", "LINES", "DISPLAY", "WINDOWID"}
OF_THE_SHELL |= {"_RJEM_MALLOC_CONF"}  # set by Polars on import
OF_THE_SHELL |= {"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "PATH", "STY", "TMUX", "TMUX_PANE"}
OF_THE_SESSION = ("TERM", "SSH_", "XDG_", "DBUS_", "MAKE", "MFLAGS", "PYTEST_", "VSCODE_")
START_TOLERANCE_S = 2.0  # tolerance for the rounding of process start times
STOP_S = 20.0
CHILDREN_STOP_S = 10.0  # a flow run closes its actors on SIGTERM
RELEASE_S = 5.0


class ServiceError(UserError):
    """A process of this project that was started does not run; the message names its log."""


@dataclass(frozen=True)
class Service:
    """One running process: what its pid file holds."""

    name: str
    pid: int
    started_at: float  # seconds since the epoch, by the kernel
    port: int | None = None

    def alive(self) -> bool:
        """Return whether this process (and not another with the same pid) is still running."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_at) < START_TOLERANCE_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def log_path(home: Path, name: str) -> Path:
    """Return the file that takes the output of service ``name``."""
    return home / "logs" / f"{name}.log"


def find(home: Path, name: str) -> Service | None:
    """Return the service of that name if it runs; a stale or broken pid file is removed."""
    path = home / f"{name}.json"
    try:
        service = Service(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # incomplete file of a killed bring-up
        service = None
    if service is not None and service.alive():
        return service
    path.unlink(missing_ok=True)
    return None


def write_atomically(path: Path, text: str) -> None:
    """Write atomically a file that only its owner may read."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(
        os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
    os.replace(temporary, path)


def make_private(folder: Path) -> None:
    """Make ``folder``, or an existing one, readable by its owner only."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Hold the bring-up of ``home`` for one process; a second one waits for the first."""
    make_private(home)
    with (home / "lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases it when the process ends
        yield


def start(
    home: Path,
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    cwd: Path,
    port: int | None = None,
    fds: Sequence[int] = (),
) -> Service:
    """Start ``command`` in its own session, so that it outlives the terminal; return it. It
    inherits the files ``fds``.

    What it and all that it starts write is for its owner only, but where a folder's default ACL
    says otherwise: logs and databases have what gives access, and stores what models learnt from.
    """
    log = log_path(home, name)
    make_private(log.parent)
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=PRIVATE,
            pass_fds=fds,
        )
    service = Service(name, process.pid, psutil.Process(process.pid).create_time(), port)
    write_atomically(home / f"{name}.json", json.dumps(asdict(service)))
    return service


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` without secrets but Prefect's: the server, which answers to browsers,
    uses no key of the hub, of wandb or of a cloud."""
    keys = secrets_of(environment)
    return {
        name: value
        for name, value in environment.items()
        if name not in keys or name.startswith("PREFECT_")
    }


def marks(environment: Mapping[str, str], *, key: str) -> dict[str, str]:
    """Return a fingerprint per variable that a service may need; it shows that a value changed, not
    the value."""
    return {
        name: hmac.digest(key.encode(), value.encode(errors="surrogateescape"), "sha256").hex()
        for name, value in environment.items()
        if name not in OF_THE_SHELL and not name.startswith(OF_THE_SESSION)
    }


def wait_ready(
    home: Path, service: Service, ready: Callable[[], bool], deadline_s: float, *, what: str
) -> None:
    """Return once ``ready()`` is true.

    Raises ServiceError naming ``what`` was waited for and its log, when the process ends before
    that or ``deadline_s`` seconds pass.
    """
    log = log_path(home, service.name)
    end = time.monotonic() + deadline_s
    while not ready():
        if not service.alive():
            raise ServiceError(f"{what} ended while starting; {log} says why: {_last_line(log)}")
        if time.monotonic() > end:
            raise ServiceError(
                f"{what} was not ready within {deadline_s:.0f} s, though its process {service.pid}"
                f" runs; see {log}, end it by `rl-pipeline down`, and try again"
            )
        time.sleep(0.1)


def stop(home: Path, name: str) -> bool:
    """End the service and the processes it started; return whether it ran.

    SIGTERM goes to the service first, so that it can end its own processes; the rest is killed.
    """
    service = find(home, name)
    if service is None:
        return False
    leader = psutil.Process(service.pid)
    children = leader.children(recursive=True)
    _end([leader], STOP_S)
    _end(children, CHILDREN_STOP_S)
    (home / f"{name}.json").unlink(missing_ok=True)
    return True


def _end(processes: Sequence[psutil.Process], patience_s: float) -> None:
    for act, wait_s in ((psutil.Process.terminate, patience_s), (psutil.Process.kill, 5.0)):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                act(process)
        _, processes = psutil.wait_procs(processes, timeout=wait_s)


def answer_of(url: str, password: str) -> tuple[int | None, str]:
    """Return the status that a server gives to ``user:password`` at ``url``, and what it says; None
    and why where nothing answers."""
    import httpx

    user, _, secret = password.partition(":")
    try:
        reply = httpx.get(url, auth=(user, secret), timeout=5.0)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        return None, str(error)
    return reply.status_code, reply.text[:200]


def free_port(preferred: Sequence[int] = ()) -> int:
    """Return the first of ``preferred`` that is free, else any free port of HOST."""
    for port in (*preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:  # taken
                continue
            return probe.getsockname()[1]
    raise UserError(f"no free port on {HOST}; end a program that listens on many")


def own_port(home: Path, default: int) -> int:
    """Return the port on which the server of ``home`` starts: that of its last time, else
    ``default``, else any free one, which is its own from now on.

    That of the last time is waited for, RELEASE_S at most: the kernel closes the sockets of a
    killed process some time after its pid says that it has ended.
    """
    before = _kept_port(home)
    deadline = time.monotonic() + RELEASE_S
    while before and free_port([before]) != before and time.monotonic() < deadline:
        time.sleep(RELEASE_S / 50)
    port = free_port([*([before] if before else []), default])
    if not before and port != default:
        print(f"port {default} is taken: the Prefect server is on {port}", file=sys.stderr)
    write_atomically(home / _PORT, str(port))
    return port


def own_socket(home: Path, default: int) -> socket.socket:
    """Return a socket that listens on ``own_port``."""
    while True:
        port = own_port(home, default)
        with suppress(OSError):  # taken since
            return socket.create_server((HOST, port), backlog=128)


def choose_port(home: Path, port: int) -> None:
    """Let the next server of ``home`` start on ``port``.

    Raises UserError for what is no port, where another program listens on it, and where the server
    runs on another."""
    if not 0 < port < 1 << 16:
        raise UserError(f"--port {port} is not a number from 1 to 65535; give one")
    with locked(home):
        running = find(home, "server")
        if running is None and free_port([port]) != port:
            raise UserError(
                f"--port {port}: another program listens on it, or you may not; give a free one"
            )
        if running is not None and running.port != port:
            raise UserError(f"--port {port}: the server is on {running.port}; `make down` first")
        write_atomically(home / _PORT, str(port))


def _kept_port(home: Path) -> int | None:
    with suppress(FileNotFoundError, ValueError):
        return int((home / _PORT).read_text(encoding="utf-8"))
    return None


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace", encoding="utf-8").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "(it is empty)")
