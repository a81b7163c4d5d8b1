"""Read pins: an artifact that somebody reads is not pruned before they have finished.

A pin is a lease of its own, so that of a reader that was killed ends as a lease does. There may be
several on one artifact.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from rlcore.store.leases import hold, is_held
from rlcore.store.records import Records

_SEPARATOR = "~"  # in no kind and no key
_PREFIX = "pin"


def _prefix(kind: str, key: str = "") -> str:
    return _SEPARATOR.join([_PREFIX, kind, *key.split("/")])


@contextmanager
def pin(records: Records, kind: str, key: str, *, reader: str) -> Iterator[None]:
    """Keep the artifact ``kind/key`` from being pruned; ``reader`` names who reads it.

    Raises ArtifactError where the store cannot be written.
    """
    name = f"{_prefix(kind, key)}{_SEPARATOR}{uuid4().hex}"
    try:
        with hold(records, name, run=reader):
            yield
    finally:
        records.remove(name)


def pinned(records: Records, kind: str, key: str) -> set[str]:
    """Return the keys of ``kind`` below ``key`` that somebody reads; pins of dead readers are
    removed."""
    found = set()
    for name in records.names(f"{_prefix(kind, key)}{_SEPARATOR}"):
        if is_held(records, name):
            found.add("/".join(name.split(_SEPARATOR)[2:-1]))
        else:
            records.remove(name)
    return found


def all_pinned(records: Records) -> set[tuple[str, str]]:
    """Return kind and key of all that somebody reads."""
    return {
        (name.split(_SEPARATOR)[1], "/".join(name.split(_SEPARATOR)[2:-1]))
        for name in records.names(f"{_PREFIX}{_SEPARATOR}")
        if is_held(records, name)
    }


def held_keys(records: Records) -> set[str]:
    """Return the keys that a process which may be alive holds to write."""
    return {
        name
        for name in records.names("")
        if not name.startswith((".", f"{_PREFIX}{_SEPARATOR}")) and is_held(records, name)
    }
