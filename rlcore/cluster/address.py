"""Whether a Ray cluster answers at an address, in seconds: Ray itself waits for minutes."""

import socket
import subprocess
import sys

from schemas.errors import UserError

CONNECT_S = 5.0
ASK_S = 8.0
_REMEDY = (
    "give the host:port that `ray start --head` printed, or null for a cluster of the run's own"
)


def check_address(address: str) -> None:
    """Raise UserError when no Ray cluster answers at ``hardware.ray_address``, host:port.

    ``auto`` leaves the choice to Ray and is not looked at.
    """
    if address == "auto":
        return
    where = f"hardware.ray_address = '{address}'"
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{where} is not of the form host:port; {_REMEDY}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise UserError(f"{where} does not answer ({error}); {_REMEDY}") from None
    # Whatever listens there may be no Ray; its client waits and warns, so it is given a process.
    ask = [sys.executable, "-m", "rlcore.cluster.ray_cluster", address]
    try:
        asked = subprocess.run(ask, capture_output=True, text=True, timeout=ASK_S, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"{where} does not answer as a Ray cluster; {_REMEDY}") from None
    if asked.returncode:
        reason = asked.stderr.strip().rpartition("\n")[2]
        raise UserError(f"{where} does not answer as a Ray cluster ({reason[:200]}); {_REMEDY}")
