"""One writer per key: a lease with a heartbeat and a generation, kept in the store; and read
pins.

The holder of the lease of a stage's key may write and remove artifacts below it. Each holder has a
higher generation than the one before, and compares it with the store's before every write, so that
a holder that was suspended and replaced writes nothing when it resumes.

A pin is a separate lease, so that of a reader that was killed ends as a lease does. There may be
several on one artifact.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from rlcore.store.checks import ArtifactError
from rlcore.store.records import Record, RecordStore

logger = logging.getLogger(__name__)

BEAT_S = 5.0
STALE_S = 60.0  # time without a heartbeat after which a lease may be taken over
_STARTED_S = 1.0  # tolerance between two readings of a process's start time


class LeaseError(ArtifactError):
    """Another process holds this key, or has taken it over; the message names it."""


class Lease:
    """The right to write below one key; made by ``hold``."""

    def __init__(self, records: RecordStore, key: str, document: dict[str, Any], record: Record):
        self._records, self.key = records, key
        self._document, self._record = document, record
        self._beating = threading.Lock()

    @contextmanager
    def fence(self) -> Iterator[None]:
        """Enter only while this lease is valid; in a local store nobody can take it over meanwhile.

        Raises LeaseError, naming the new holder, when it was taken over.
        """
        with self._records.guard(self.key):
            now = _read(self._records, self.key)[1]
            # By token: a damaged document has no generation, and the next holder counts from 1
            # again.
            if now.get("token") != self._document["token"]:
                raise LeaseError(
                    f"{self.key} was taken over by {_holder(now)}: this process (process"
                    f" {os.getpid()} on {socket.gethostname()}, generation"
                    f" {self._document['generation']}) sent no heartbeat for {STALE_S:.0f} s."
                    " Nothing was written; let that run finish, or end it, and rerun"
                )
            yield

    def beat(self) -> bool:
        """Renew the lease; False once it was taken over."""
        with self._beating:
            # New content each time, by which a local store tells one version from another.
            content = _encode({**self._document, "beat": uuid4().hex})
            record = self._records.exchange(self.key, self._record, content)
            if record is not None:
                self._record = record
            return record is not None

    def release(self) -> None:
        """Release the key; does nothing where it was taken over."""
        with self._beating:
            # It keeps the generation, from which the next holder counts on, and names no process.
            gone = {"generation": self._document["generation"], "token": uuid4().hex}
            self._records.exchange(self.key, self._record, _encode(gone))


@contextmanager
def hold(records: RecordStore, key: str, *, run: str) -> Iterator[Lease]:
    """Hold the lease of ``key`` and keep it alive; ``run`` names the flow run in messages.

    Raises LeaseError, naming the holder, while another process works on the key. The lease of a
    dead holder is taken over: immediately where it was a process of this machine, else when its
    last heartbeat is ``STALE_S`` old by the store's clock.
    """
    lease = _take(records, key, run)
    ended = threading.Event()
    # In the caller's context, so that its warnings are logged in the caller's flow run.
    beats = threading.Thread(
        target=copy_context().run, args=(_keep, lease, ended), name=f"lease-{key}", daemon=True
    )
    beats.start()
    try:
        yield lease
    finally:
        ended.set()
        beats.join()
        try:
            lease.release()
        except ArtifactError as error:  # the result, or an earlier error, matters more
            logger.warning(f"the lease of {key} was not released, and will expire: {error}")


def is_held(records: RecordStore, key: str) -> bool:
    """Return whether a process that may be alive holds ``key``."""
    record, document = _read(records, key)
    return record is not None and _is_held(records, key, document)


def _take(records: RecordStore, key: str, run: str) -> Lease:
    seen: Record | None = None
    while True:
        record, document = _read(records, key)
        if record is not None and _is_held(records, key, document):
            # Not a process of this machine, so only the heartbeat shows whether it is alive.
            if _is_on_this_machine(document) or (seen is not None and seen != record):
                raise LeaseError(
                    f"{key} is being made by {_holder(document)}. Let it finish and rerun to use"
                    " its result, or cancel it"
                )
            if seen is None:
                logger.warning(
                    f"{key} is held by {_holder(document)}; waiting for its heartbeat, or until"
                    f" there is none for {STALE_S:.0f} s"
                )
            seen = record
            time.sleep(BEAT_S / 5)
            continue
        mine = {
            "generation": document.get("generation", 0) + 1,
            "token": uuid4().hex,
            "run": run,
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
        }
        # Of several processes that found the key free one wins; the others look again.
        taken = records.exchange(key, record, _encode(mine))
        if taken is not None:
            if "pid" in document:
                logger.warning(f"{key}: {_holder(document)} has ended; its lease is taken over")
            return Lease(records, key, mine, taken)


def _keep(lease: Lease, ended: threading.Event) -> None:
    """Send heartbeats until ``ended``. Failures are retried: each write checks the lease."""
    while not ended.wait(BEAT_S):
        try:
            if not lease.beat():
                logger.warning(f"{lease.key} was taken over: this run ends at its next write")
                return
        except ArtifactError as error:
            logger.warning(f"the heartbeat of {lease.key} was not written: {error}")


def _is_held(records: RecordStore, key: str, document: dict[str, Any]) -> bool:
    if "pid" not in document:
        return False
    if _is_on_this_machine(document) and not _is_alive(document["pid"], document["started"]):
        return False
    return records.age_s(key) < STALE_S


def _is_on_this_machine(document: dict[str, Any]) -> bool:
    return document["machine"] == _machine()


def _is_alive(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        return (
            process.status() != psutil.STATUS_ZOMBIE
            # Pids are reused: with another start time it is another process.
            and abs(process.create_time() - started) < _STARTED_S
        )
    except psutil.NoSuchProcess:
        return False


def _machine() -> str:
    """Return the scope in which a pid is unique: this boot of this kernel and the pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return f"{socket.gethostname()}, up since {psutil.boot_time():.0f}"
    return f"{boot.read_text(encoding='utf-8').strip()} {os.readlink('/proc/self/ns/pid')}"


def _read(records: RecordStore, key: str) -> tuple[Record | None, dict[str, Any]]:
    record = records.read(key)
    if record is None:
        return None, {}
    try:
        return record, dict(json.loads(record.content))
    except (ValueError, TypeError):
        return record, {}  # not a valid lease, so it has no holder


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def _holder(document: dict[str, Any]) -> str:
    if "pid" not in document:
        return f"a run that has ended since (generation {document.get('generation')})"
    return (
        f"{document['run']}, process {document['pid']} on {document['host']} (generation "
        f"{document['generation']})"
    )


_SEPARATOR = "~"  # in no kind and no key
_PINS = f"pin{_SEPARATOR}"


@contextmanager
def pin(records: RecordStore, kind: str, key: str, *, reader: str) -> Iterator[None]:
    """Keep the artifact ``kind/key`` from being pruned; ``reader`` names who reads it.

    Raises ArtifactError where the store cannot be written.
    """
    name = _PINS + _SEPARATOR.join([kind, *key.split("/"), uuid4().hex])
    try:
        with hold(records, name, run=reader):
            yield
    finally:
        records.remove(name)


def pinned(records: RecordStore) -> set[str]:
    """Return the places (``<kind>/<key>``) that somebody reads; remove the pins of dead readers."""
    found = set()
    for name in records.names(_PINS):
        if is_held(records, name):
            found.add("/".join(name.split(_SEPARATOR)[1:-1]))
        else:
            records.remove(name)
    return found


def held_keys(records: RecordStore) -> set[str]:
    """Return the keys that a process which may be alive holds to write."""
    return {
        name
        for name in records.names("")
        if not name.startswith((".", _PINS)) and is_held(records, name)
    }
