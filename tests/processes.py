"""The two processes of ``make test`` (pytest-xdist's), as each of them sees itself."""

import os

PROCESS = os.environ.get("PYTEST_XDIST_WORKER")  # None where there is one only


def starts_ahead() -> bool:
    """Return whether this process runs the tests with a server; both collect all of them."""
    return PROCESS in (None, "gw0")
