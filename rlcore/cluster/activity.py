"""What this process is doing at the moment, for a display of long silences."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_UNDER_WAY: list[tuple[str, float]] = []


@contextmanager
def activity(what: str) -> Iterator[None]:
    """Name what the body does: a few words that "... is running" may follow."""
    entry = (what, time.monotonic())
    _UNDER_WAY.append(entry)
    try:
        yield
    finally:
        _UNDER_WAY.remove(entry)


def current() -> tuple[str, float] | None:
    """Return the innermost activity and its seconds so far; None outside of any."""
    if not _UNDER_WAY:
        return None
    what, since = _UNDER_WAY[-1]
    return what, time.monotonic() - since
