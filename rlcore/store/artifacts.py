"""The artifact store: what a stage wrote is complete, verified and traceable, or it is not there.

An artifact is the directory ``<root>/<kind>/<key>/`` of Parquet tables and files with a
``manifest.json`` that lists them with their digests and names what they were made from.
No manifest, no artifact.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.store.checks import (
    MANIFEST,
    ArtifactError,
    DamagedArtifact,
    check_digest,
    check_listing,
    content_digest,
    damaged,
    file_digest,
    is_safe_name,
    location,
    parse_manifest,
)
from rlcore.store.leases import Lease, LeaseError, hold
from rlcore.store.local import LocalFiles
from rlcore.store.remote import RemoteFiles
from rlcore.store.tables import (
    check_version,
    decode_table,
    encode_table,
    remember_valid,
    schema_versions,
)
from schemas.artifacts import ArtifactRef, FileEntry, Manifest
from schemas.errors import UserError, did_you_mean

__all__ = ["ArtifactError", "ArtifactStore", "DamagedArtifact", "LeaseError", "Lineage"]


@dataclass(frozen=True)
class Lineage:
    """What an artifact was made from and by; kept in its manifest."""

    recipe_digest: str
    code_fingerprint: str
    parents: Mapping[str, ArtifactRef] = field(default_factory=dict)  # role -> what was read
    producer: str = ""  # flow run id
    metadata: Mapping[str, Any] = field(default_factory=dict)  # JSON values


class ArtifactStore:
    """Artifacts below a local directory or an fsspec URL such as ``s3://bucket/prefix``."""

    def __init__(
        self, root: str | Path, cache: Path | None = None, *, writer: str = "another run"
    ) -> None:
        """Open the store at ``root``; nothing is created before the first ``put``.

        ``cache``: where copies of a remote store's files are kept (default: the user's cache).
        ``writer``: what others are told of who holds a key. Raises UserError when no filesystem is
        installed for the URL.
        """
        self._writer = writer
        self._leases: dict[str, Lease] = {}
        text = str(root).removeprefix("file://")
        if "://" in text:
            self._files: LocalFiles | RemoteFiles = RemoteFiles(text, cache)
            self.root = self._files.root
        else:
            self._files = LocalFiles(Path(text).expanduser().absolute())
            self.root = str(self._files.root)

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Be the only writer of ``key`` and all below it, of every kind; others are refused.

        May be entered again by who holds it. Raises LeaseError while another process holds it;
        ``put`` and ``discard`` raise it from the moment on at which this process is taken for dead
        and replaced.
        """
        if key in self._leases:
            yield
            return
        location("leases", key)
        with hold(self._files.records(), key, run=self._writer) as lease:
            self._leases[key] = lease
            try:
                yield
            finally:
                del self._leases[key]

    def put(
        self,
        kind: str,
        key: str,
        *,
        tables: Mapping[str, pl.DataFrame] | None = None,
        directory: Path | None = None,
        lineage: Lineage,
    ) -> ArtifactRef:
        """Store tables (as ``<name>.parquet``) and the files of ``directory`` as one artifact.

        If the artifact exists already it is verified and returned unchanged. A local store
        hard-links the files of ``directory``: their owner must not write to them afterwards
        (empty folders are not kept). Raises UserError when a table breaks its contract,
        ArtifactError when the artifact that exists is damaged or the disk refuses; nothing
        half-written becomes visible.
        """
        if (existing := self.find(kind, key)) is not None:
            return existing
        place = location(kind, key)
        uri = self._files.uri(place)
        tables = tables or {}
        contents: dict[str, bytes | Path] = {
            f"{name}.parquet": encode_table(name, frame, kind) for name, frame in tables.items()
        }
        if directory is not None:
            contents.update(_directory_files(directory, taken=contents, uri=uri))
        entries = {name: _entry(content) for name, content in contents.items()}
        manifest = Manifest(
            kind=kind,
            key=key,
            sha256=content_digest(entries),
            files=entries,
            rows={name: frame.height for name, frame in tables.items()},
            schema_versions=schema_versions(tables),
            recipe_digest=lineage.recipe_digest,
            code_fingerprint=lineage.code_fingerprint,
            parents=dict(lineage.parents),
            producer=lineage.producer,
            metadata=dict(lineage.metadata),
        )
        if not self._files.publish(place, contents, manifest, lambda: self._fence(key)):
            winner = self.find(kind, key)
            if winner is None:
                raise ArtifactError(f"{uri} is being written and removed by others at once; rerun")
            return winner
        for name in tables:
            remember_valid(name, entries[f"{name}.parquet"].sha256)
        return self._ref(manifest)

    def find(self, kind: str, key: str) -> ArtifactRef | None:
        """Return the artifact's ref, or None where there is no manifest.

        Names and sizes are checked, and in a local store the digests too; a remote store's
        digests are checked when its files are read. Raises ArtifactError on damage.
        """
        manifest = self._whole(kind, key)
        if manifest is None:
            return None
        if isinstance(self._files, LocalFiles):
            self._check_digests(manifest)
        return self._ref(manifest)

    def find_or_discard(
        self, kind: str, key: str, log: Callable[[str], None]
    ) -> ArtifactRef | None:
        """Return the artifact's ref, all its files verified; a damaged one is logged and dropped.

        Damage is what two looks at the artifact's own place agree on; a harmed local copy of a
        remote file is none. Raises ArtifactError for what cannot be read for another reason
        (network, credentials, a newer format) and LeaseError for what another process works on:
        nothing is dropped then.
        """
        for look in (1, 2):
            try:
                ref = self.find(kind, key)
                if ref is not None and not isinstance(self._files, LocalFiles):
                    self.verify(ref)
            except DamagedArtifact as damage:
                if look == 2:
                    with self.hold(_held_by(key)):
                        log(str(damage))
                        self.discard(kind, key)
            else:
                return ref
        return None

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a folder to prepare an artifact's files in; it goes afterwards, or with its writer.

        In a local store it lies on the store's own filesystem: ``put`` then links and never copies.
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

    def verify(self, ref: ArtifactRef) -> None:
        """Check names, sizes and digests of every file (a remote store's are downloaded once).

        Raises ArtifactError naming the file, what is wrong, and the mend.
        """
        self._check_digests(self.manifest(ref))

    def table(self, ref: ArtifactRef, name: str) -> pl.DataFrame:
        """Return table ``name`` of an artifact, its digest verified and its contract checked.

        Raises ArtifactError when it is damaged, UserError when the artifact has no such table.
        """
        manifest = self.manifest(ref)
        uri = self._files.uri(location(ref.kind, ref.key))
        if name not in manifest.schema_versions:
            there = ", ".join(manifest.schema_versions) or "no tables"
            near = did_you_mean(name, manifest.schema_versions)
            raise UserError(f"{uri} has no table {name!r}; it holds {there}{near}")
        file_name = f"{name}.parquet"
        path = self.file(manifest, file_name)
        frame = decode_table(name, path, manifest.files[file_name].sha256, uri)
        if frame.height != manifest.rows.get(name):
            raise damaged(
                uri, f"{uri}/{file_name} has {frame.height} rows, not {manifest.rows.get(name)}"
            )
        return frame

    def directory(self, ref: ArtifactRef) -> Path:
        """Return a local directory with the artifact's files, verified; they must not be changed.

        A remote store's files are downloaded once. Raises ArtifactError on damage.
        """
        manifest = self.manifest(ref)
        self._check_digests(manifest)
        return self._files.fetch_all(location(ref.kind, ref.key), manifest)

    def manifest(self, ref: ArtifactRef) -> Manifest:
        """Return the manifest behind ``ref``, names and sizes of its files checked.

        Raises ArtifactError when the artifact is gone, damaged, or no longer what ``ref`` names.
        """
        manifest = self._whole(ref.kind, ref.key)
        uri = self._files.uri(location(ref.kind, ref.key))
        if manifest is None:
            raise ArtifactError(
                f"{uri} is not in the store (its manifest is missing). "
                "Rerun the pipeline: the stage that wrote it will be run again."
            )
        if manifest.sha256 != ref.sha256:
            raise ArtifactError(
                f"{uri} holds content {manifest.sha256[:12]}... where {ref.sha256[:12]}... "
                "is asked for: it was written anew since. Rerun the pipeline."
            )
        return manifest

    def manifests(self, on_damage: Callable[[str], None] | None = None) -> list[Manifest]:
        """Return the manifests of all complete artifacts by kind and key; files unchecked.

        A damaged manifest is left out and told to ``on_damage``; without one it raises
        DamagedArtifact.
        """
        found = []
        for kind in self._files.kinds():
            keys = self.keys(kind)
            raws = self._files.read_manifests([location(kind, key) for key in keys])
            for key, raw in zip(keys, raws, strict=True):
                uri = self._files.uri(location(kind, key))
                try:
                    found.append(parse_manifest(raw, uri, kind, key))
                except DamagedArtifact as damage:
                    if on_damage is None:
                        raise
                    on_damage(f"{uri} is left out: {damage.fault}")
        return found

    def file(self, manifest: Manifest, name: str) -> Path:
        """Return the local path of one file of an artifact, its digest verified.

        Raises ArtifactError when it is damaged.
        """
        place = location(manifest.kind, manifest.key)
        path = self._files.fetch(place, name, manifest)
        check_digest(path, manifest.files[name], self._files.uri(place), name)
        return path

    def keys(self, kind: str, prefix: str = "") -> list[str]:
        """Return the sorted keys of ``kind`` that start with ``prefix`` and have a manifest."""
        location(kind, "any")
        return sorted(self._files.locations(kind, prefix))

    def discard(self, kind: str, key: str) -> None:
        """Remove an artifact, its manifest first; nothing happens where there is none."""
        place = location(kind, key)
        with self._fence(key):
            self._files.remove(place)

    def _whole(self, kind: str, key: str) -> Manifest | None:
        place = location(kind, key)
        uri = self._files.uri(place)
        raw = self._files.read_manifest(place)
        if raw is None:
            return None
        manifest = parse_manifest(raw, uri, kind, key)
        for name, version in manifest.schema_versions.items():
            check_version(name, version, f"{uri}/{MANIFEST}", uri)
        check_listing(manifest, self._files.listing(place), uri)
        return manifest

    def _fence(self, key: str) -> AbstractContextManager[None]:
        lease = self._leases.get(_held_by(key))
        return nullcontext() if lease is None else lease.fence()

    def _check_digests(self, manifest: Manifest) -> None:
        for name in manifest.files:
            self.file(manifest, name)

    def _ref(self, manifest: Manifest) -> ArtifactRef:
        return ArtifactRef(
            kind=manifest.kind,
            key=manifest.key,
            uri=self._files.uri(location(manifest.kind, manifest.key)),
            sha256=manifest.sha256,
            rows=manifest.rows,
        )


def _held_by(key: str) -> str:
    """Return the key whose lease covers ``key``: that of its stage, its first part."""
    return key.partition("/")[0]


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
                "the name is the store's own or not plain; rename the file"
            )
        if not path.is_file():
            raise UserError(f"{path} cannot be stored as {uri}/{name}: it is not a plain file")
        files[name] = path.resolve()
    if not files:
        raise UserError(f"{directory} cannot be stored as {uri}: it holds no files")
    return files
