"""What a machine's environment must not change: our own traffic stays on the loopback interface
without a proxy, sockets have short paths, libraries report nothing and keep the user's CPU
limit.

``ATEN_CPU_CAPABILITY`` lowers the instruction set of torch's kernels and not of oneDNN, which reads
the CPU. On a CPU with AMX torch's attention in bfloat16 then packs keys for oneDNN from 64 tokens
on and, compiled without AVX-512, cannot: "pack_vnni2 is only supported when avx512 is supported"
(torch 2.13, ``could_pack`` in aten/src/ATen/native/CPUBlas.cpp). A CPU that has no AMX is never
asked to.
"""

import getpass
import locale
import logging
import os
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from io import TextIOWrapper
from pathlib import Path
from urllib.parse import urlsplit

import psutil

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

# gloo and NCCL listen without authentication on the interface that these variables name.
LOOPBACK_ENV = {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}


def interface_towards(url: str) -> str:
    """Return the interface of this host that reaches tcp://host:port ``url``, also where that is
    this host itself."""
    there = urlsplit(url)
    assert there.hostname is not None, "a rendezvous names a host"
    family, *_, where = socket.getaddrinfo(there.hostname, there.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        own = probe.getsockname()[0]
    held = psutil.net_if_addrs().items()
    return next(name for name, found in held if any(one.address == own for one in found))


CAPABILITY, LIMIT = "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"
LOWERED = ("default", "avx2")
WITHOUT_AMX = "AVX512_CORE_FP16"


def limit_onednn(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep oneDNN off AMX where torch's kernels are limited; call it before bfloat16 is computed.

    A limit that the user has set stays.
    """
    if environment.get(CAPABILITY, "").lower() in LOWERED:
        environment.setdefault(LIMIT, WITHOUT_AMX)


# What libraries send to their makers.
OFF = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "WANDB_ERROR_REPORTING": "false",
}


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_VLLM_SOCKETS = "VLLM_RPC_BASE_PATH"
# Of the 107 bytes of a socket's path Ray takes some 66: /session_<time>_<process>/sockets/<name>.
_LONGEST = 40
RAY = "ray"
CHOSEN = "RAY_TMPDIR"  # the user's choice of a place
_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
# Waiting threads of OpenMP spin this often before they sleep; read as torch is imported. Beside a
# process that spins on one of two cores an RL iteration of quickstart takes 1.6 times as long as on
# idle ones, and 2.5 times with 20,000; on idle cores it is the same. The default is no end.
SPINNING = {"GOMP_SPINCOUNT": "1000"}


def set_variables(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that this process and all that it starts read; call it before libraries
    are imported. What a user has set stays, but that loopback is excluded from proxies."""
    logging.getLogger("DeepSpeed").addFilter(_is_no_guess)
    _exclude_loopback(environment)
    for name, value in (OFF | SPINNING).items():
        environment.setdefault(name, value)
    if not any(name in environment for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):
        try:
            getpass.getuser()
        except (KeyError, OSError):  # as in ``docker run --user``; torch asks for the name
            environment["LOGNAME"] = f"uid-{os.getuid()}"
    if _VLLM_SOCKETS not in environment and (folder := socket_folder()):
        environment[_VLLM_SOCKETS] = folder
    if locale.getencoding().lower().replace("-", "") not in ("utf8", "cp65001"):
        environment["PYTHONUTF8"] = "1"  # of the processes that it starts
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # show what the terminal cannot, not an error
                stream.reconfigure(errors="replace")


def _is_no_guess(record: logging.LogRecord) -> bool:
    """Return False for what DeepSpeed says when a library imports it where there is no GPU: it
    writes it to standard output, among what a command prints."""
    return not str(record.msg).startswith("Setting accelerator to CPU")


def obstacles() -> Iterator[tuple[str, str, str]]:
    """Yield what keeps our own Ray from starting here: its name, what was found, a remedy."""
    home = os.path.expanduser("~")
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        folder = os.path.join(home, ".ray")
        if not os.access(folder if os.path.exists(folder) else home, os.W_OK | os.X_OK):
            found = f"'{folder}', where Ray keeps its token, cannot be written"
            yield "home", found, "set HOME to a folder that you can write"
    if socket_folder() is not None:
        return
    if chosen := os.environ.get(CHOSEN):
        longest = _LONGEST - len(f"/{_name()}/{RAY}")
        found = f"{CHOSEN} = '{chosen}' has no room for our sockets: it cannot be written, or is"
        found += " too long: a socket's path has at most 107 bytes"
        yield "sockets", found, f"give a folder of at most {longest} bytes, or unset it"
    else:
        found = f"no folder for sockets: none of {', '.join(_PLACES)} can be written"
        yield "sockets", found, f"set {CHOSEN} to a folder of yours with a short path"


def _exclude_loopback(environment: MutableMapping[str, str]) -> None:
    if not any(environment.get(name) or environment.get(name.upper()) for name in _PROXIES):
        return
    given = ",".join(environment.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    excluded = dict.fromkeys(one.strip() for one in given.split(",") if one.strip())
    if "*" not in excluded:
        excluded |= dict.fromkeys(_LOOPBACK)
    # Some libraries read the one, some the other.
    environment["no_proxy"] = environment["NO_PROXY"] = ",".join(excluded)


def socket_folder() -> str | None:
    """Return a folder of this user's alone whose path leaves room for sockets' names; ``/tmp/ray``
    may be somebody else's, and ``TMPDIR`` long. None where there is none.

    It is made in ``RAY_TMPDIR`` where that is set. Ray gets the folder ``RAY`` in it: it opens the
    one that it is given to everybody, and others who can write there answer in the place of Ray.
    """
    chosen = os.environ.get(CHOSEN)
    # Not XDG_RUNTIME_DIR: it is removed after the last log-out, while runs continue.
    for place in dict.fromkeys([chosen] if chosen else [tempfile.gettempdir(), *_PLACES]):
        folder = Path(place, _name())
        if len(os.fsencode(folder / RAY)) > _LONGEST:
            continue
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            around, found = folder.parent.stat().st_mode, folder.lstat()
        except OSError:
            continue
        moved = around & 0o022 and not around & stat.S_ISVTX  # others may put theirs in its place
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not moved
        if ours and not found.st_mode & 0o077 and os.access(folder, os.W_OK | os.X_OK):
            return str(folder)
    return None


def _name() -> str:
    return f"rlp-{os.getuid()}"
