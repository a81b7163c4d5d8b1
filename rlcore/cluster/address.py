"""Whether a Ray cluster answers at an address, and with which token: told in seconds and in one
sentence, where Ray itself waits for minutes or ends in a traceback."""

import json
import os
import secrets
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rlcore.cluster.hosts import Host, check_token
from schemas.errors import UserError

CONNECT_S = 5.0
ASK_S = 15.0  # of which a busy machine needs ten for the import of Ray
MODE = "RAY_AUTH_MODE"
TOKEN, DISABLED = "token", "disabled"  # values of ``MODE``
REFUSED = 3  # exit status of the process that asks, where the cluster wants another token
_REMEDY = (
    "give the host:port that `ray start --head` printed, or null for a cluster of the run's own"
)
_GIVE = (
    "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that only you can read, to the token that"
    " the cluster was started with"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a cluster said: the ``mode`` in which it is to be asked, ``TOKEN`` or ``DISABLED``, and
    its nodes that are alive."""

    mode: str
    hosts: tuple[Host, ...]


def check_address(address: str) -> Answer | None:
    """Return what the cluster at ``hardware.ray_address``, host:port, answers; None for ``auto``,
    which Ray resolves.

    Raises UserError when no Ray cluster answers there, or not with this process's token, and when
    one of several nodes asks for none.
    """
    if address == "auto":
        return None
    where = f"hardware.ray_address = '{address}'"
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{where} is not of the form host:port; {_REMEDY}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise UserError(f"{where} does not answer ({error}); {_REMEDY}") from None
    wanted = os.environ.get(MODE, "").lower()
    if (hosts := _accepts(address, DISABLED, where)) is not None:
        if wanted == TOKEN:
            raise UserError(
                f"{where} asks for no token, so whoever reaches it can run commands there, while"
                f" {MODE} = '{TOKEN}' demands one; start the cluster with {MODE}={TOKEN}, or unset"
                " the variable here"
            )
        check_token(address, hosts)
        return Answer(DISABLED, hosts)
    if wanted == DISABLED:
        raise UserError(
            f"{where} asks for a token, and {MODE} = '{DISABLED}' sends none; unset {MODE}, and"
            f" {_GIVE}"
        )
    source = _token_source()
    if source is None:
        raise UserError(f"{where} asks for a token, and none is set here; {_GIVE}")
    if (hosts := _accepts(address, TOKEN, where)) is None:
        raise UserError(f"{where} refuses the token of {source}; {_GIVE}")
    return Answer(TOKEN, hosts)


def require_token() -> None:
    """Let only this user read the token that Ray's processes ask for.

    Ray reads it from these variables or from its file, which it would create readable for everyone.
    """
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        return
    path = Path.home() / ".ray" / "auth_token"
    path.parent.mkdir(exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        path.chmod(0o600)


def _accepts(address: str, mode: str, where: str) -> tuple[Host, ...] | None:
    """Return the nodes of the cluster where it answers a client of this ``mode``; None where it
    asks for another token. Raises UserError where no Ray cluster answers."""
    # Whatever listens there may be no Ray; its client waits and warns, so it is given a process.
    try:
        asked = subprocess.run(
            [sys.executable, "-m", "rlcore.cluster.ray_cluster", address],
            env={**os.environ, MODE: mode},
            capture_output=True,
            timeout=ASK_S,
            check=False,
            encoding="utf-8",
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{where} does not answer as a Ray cluster; {_REMEDY}") from None
    if asked.returncode == REFUSED:
        return None
    if asked.returncode:
        reason = asked.stderr.strip().rpartition("\n")[2]
        raise UserError(f"{where} does not answer as a Ray cluster ({reason[:200]}); {_REMEDY}")
    return tuple(Host(*host) for host in json.loads(asked.stdout))


def _token_source() -> str | None:
    """Return where Ray takes this process's token from, in its order; None where there is none.
    Without a token its client aborts the process."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        return str(path) if path.read_text(encoding="utf-8").strip() else None
    except (OSError, UnicodeDecodeError):
        return None
