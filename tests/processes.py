"""The processes of ``make test`` (pytest-xdist's), as each of them sees itself."""

import os

PROCESS = os.environ.get("PYTEST_XDIST_WORKER")  # None where there is one only


def starts_ahead() -> bool:
    """Return whether this process runs tests with a server; all collect all of them."""
    return PROCESS in (None, "gw0", "gw1")
