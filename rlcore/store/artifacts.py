"""``ArtifactStore``: what writes, finds and discards artifacts, under a lease and with their
lineage, in a local directory or a bucket."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl

from rlcore.store.checks import (
    ArtifactError,
    DamagedArtifact,
    content_digest,
    file_digest,
    is_safe_name,
    location,
    manifest_seal,
)
from rlcore.store.leases import Lease, LeaseError, held_keys, hold, pin, pinned
from rlcore.store.local import LocalFiles
from rlcore.store.reader import ArtifactReader
from rlcore.store.records import LEASES
from rlcore.store.tables import TableFile, encode_table
from rlcore.store.tombstones import FOLDER as PRUNED
from rlcore.store.tombstones import SEPARATOR, encode, group_of
from schemas.artifacts import ArtifactRef, FileEntry, Manifest
from schemas.errors import UserError
from schemas.table_list import schema_version

__all__ = ["ArtifactError", "ArtifactStore", "DamagedArtifact", "LeaseError", "Lineage"]


@dataclass(frozen=True)
class Lineage:
    """The inputs and the producer of an artifact; kept in its manifest."""

    recipe_digest: str
    code_fingerprint: str
    parents: Mapping[str, ArtifactRef] = field(default_factory=dict)  # role -> what was read
    producer: str = ""  # flow run id
    metadata: Mapping[str, Any] = field(default_factory=dict)  # JSON values


class ArtifactStore(ArtifactReader):
    """Artifacts below a local directory or an fsspec URL such as ``s3://bucket/prefix``."""

    def __init__(
        self, root: str | Path, cache: Path | None = None, *, writer: str = "another run"
    ) -> None:
        """Open the store at ``root``; nothing is created before the first ``put``.

        ``writer``: the name of the key's holder in errors of other processes. See
        ``ArtifactReader``.
        """
        super().__init__(root, cache)
        self._writer = writer
        self._leases: dict[str, Lease] = {}

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Be the only writer of ``key`` and all below it, of every kind; others are refused.

        Reentrant for the holder. Raises LeaseError while another process holds it; ``put`` and
        ``discard`` raise it once this process was considered dead and replaced.
        """
        if key in self._leases:
            yield
            return
        location("leases", key)
        with hold(self._files.records(LEASES), key, run=self._writer) as lease:
            self._leases[key] = lease
            try:
                yield
            finally:
                del self._leases[key]

    def pin(self, kind: str, key: str) -> AbstractContextManager[None]:
        """Keep an artifact from being pruned while it is entered; see ``rlcore.store.leases``."""
        location(kind, key)
        return pin(self._files.records(LEASES), kind, key, reader=self._writer)

    def being_written(self) -> set[str]:
        """Return the keys that somebody holds."""
        return held_keys(self._files.records(LEASES))

    def being_read(self) -> set[str]:
        """Return the places (``<kind>/<key>``) that somebody reads."""
        return pinned(self._files.records(LEASES))

    def put(
        self,
        kind: str,
        key: str,
        *,
        tables: Mapping[str, pl.DataFrame | TableFile] | None = None,
        directory: Path | None = None,
        lineage: Lineage,
    ) -> ArtifactRef:
        """Store tables (as ``<name>.parquet``) and the files of ``directory`` as one artifact.

        It outlives a power failure. An artifact that already exists is verified and returned
        unchanged. A local store hard-links the files of tables and of ``directory``: their owner
        must not write to them afterwards (empty folders are not kept). Raises UserError when a
        table breaks its contract, ArtifactError when the artifact that exists is damaged or the
        disk is full or read-only; nothing half-written becomes visible.
        """
        if (existing := self.find(kind, key)) is not None:
            return existing
        place = location(kind, key)
        uri = self._files.uri(place)
        tables = tables or {}
        contents: dict[str, bytes | Path] = {
            f"{name}.parquet": table.path
            if isinstance(table, TableFile)
            else encode_table(name, table, kind)
            for name, table in tables.items()
        }
        if directory is not None:
            contents.update(_directory_files(directory, taken=contents, uri=uri))
        entries = {name: _entry(content) for name, content in contents.items()}
        manifest = _manifest(kind, key, tables, entries, lineage)

        if not self._files.publish(place, contents, manifest, partial(self._fence, key)):
            winner = self.find(kind, key)
            if winner is None:
                raise ArtifactError(f"{uri} is being written and removed by other processes; rerun")
            return winner
        return self._ref(manifest)

    def find_or_discard(
        self, kind: str, key: str, log: Callable[[str], None]
    ) -> ArtifactRef | None:
        """Return the artifact's ref, all its files verified; a damaged one is logged and dropped.

        An artifact counts as damaged when two reads of the stored files agree; a damaged local copy
        of a remote file does not count. Raises ArtifactError when it cannot be read for another
        reason (network, credentials, a newer format) and LeaseError when another process works on
        it: nothing is dropped then.
        """
        for look in (1, 2):
            try:
                ref = self.find(kind, key)
                if ref is not None and not isinstance(self._files, LocalFiles):
                    self.verify(ref)
            except DamagedArtifact as damage:
                if look == 2:
                    with self.hold(group_of(key)):
                        log(str(damage))
                        self.discard(kind, key)
            else:
                return ref
        return None

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a folder to prepare an artifact's files in; it is removed afterwards, or once its
        writer is dead.

        In a local store it is on the store's own filesystem, so that ``put`` links and never
        copies.
        """
        if not isinstance(self._files, LocalFiles):
            with tempfile.TemporaryDirectory(prefix="rl-pipeline-") as folder:
                yield Path(folder)
            return
        folder = self._files.staging_folder()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def discard(self, kind: str, key: str) -> None:
        """Remove an artifact, its manifest first; does nothing where there is none."""
        place = location(kind, key)
        with self._fence(key):
            self._files.remove(place)

    def prune(self, group: str, planned: Mapping[str, tuple[str, str]]) -> list[Manifest]:
        """Remove the artifacts ``planned``, all their manifests kept before the first is removed;
        return them.

        ``planned``: place (``<kind>/<key>``) -> the content it must have, and why it goes; the keys
        begin with ``group``. One that was made again since is left. Raises LeaseError while another
        process works on ``group``.
        """
        with self.hold(group):
            there = self.read_manifests(list(planned), lambda damage: None)
            found = [m for m in there if planned[f"{m.kind}/{m.key}"][0] == m.sha256]
            if found:
                reasons = [planned[f"{m.kind}/{m.key}"][1] for m in found]
                name = f"{group}{SEPARATOR}{uuid4().hex}.json"
                self._files.records(PRUNED).exchange(name, None, encode(found, reasons))
            for manifest in found:
                self.discard(manifest.kind, manifest.key)
        return found

    def leftovers(self, kind: str) -> dict[str, int]:
        """Return place -> bytes of folders of ``kind`` that hold no artifact."""
        return self._files.leftovers(kind)

    def clear(self, kind: str, group: str) -> int:
        """Remove the leftovers of ``kind`` below ``group``; return their bytes. Raises LeaseError
        while another process works on it."""
        with self.hold(group):
            found = {
                place: size
                for place, size in self.leftovers(kind).items()
                if group_of(place.partition("/")[2]) == group
            }
            for place in found:
                with self._fence(group):
                    self._files.remove(place)
        return sum(found.values())

    def _fence(self, key: str) -> AbstractContextManager[None]:
        lease = self._leases.get(group_of(key))
        return nullcontext() if lease is None else lease.fence()


def _manifest(
    kind: str,
    key: str,
    tables: Mapping[str, pl.DataFrame | TableFile],
    files: dict[str, FileEntry],
    lineage: Lineage,
) -> Manifest:
    """Return the sealed manifest of an artifact."""
    manifest = Manifest(
        kind=kind,
        key=key,
        sha256=content_digest(files),
        files=files,
        rows={
            name: table.rows if isinstance(table, TableFile) else table.height
            for name, table in tables.items()
        },
        schema_versions={name: schema_version(name) for name in tables},
        recipe_digest=lineage.recipe_digest,
        code_fingerprint=lineage.code_fingerprint,
        parents=dict(lineage.parents),
        producer=lineage.producer,
        metadata=dict(lineage.metadata),
    )
    return manifest.model_copy(
        update={"seal": manifest_seal(json.loads(manifest.model_dump_json()))}
    )


def _entry(content: bytes | Path) -> FileEntry:
    if isinstance(content, bytes):
        return FileEntry(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    return FileEntry(sha256=file_digest(content), bytes=content.stat().st_size)


def _directory_files(directory: Path, taken: Mapping[str, Any], uri: str) -> dict[str, Path]:
    """Return relative name -> resolved path of every file below ``directory``, links followed."""
    if not directory.is_dir():
        raise UserError(f"{directory} cannot be stored as {uri}: it is not a directory")
    files = {}
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            continue
        name = path.relative_to(directory).as_posix()
        if name in taken or not is_safe_name(name):
            raise UserError(
                f"{path} cannot be stored as {uri}/{name}: "
                "the name is reserved or contains unsupported characters; rename the file"
            )
        if not path.is_file():
            raise UserError(f"{path} cannot be stored as {uri}/{name}: it is not a regular file")
        files[name] = path.resolve()
    if not files:
        raise UserError(f"{directory} cannot be stored as {uri}: it holds no files")
    return files
