"""Reading artifacts, each verified before any of it is used.

An artifact is the directory ``<root>/<kind>/<key>/`` of Parquet tables and files with a
``manifest.json`` that lists them with their digests and the artifacts they were made from. Without
a manifest there is no artifact.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import polars as pl

from rlcore.store.checks import (
    MANIFEST,
    ArtifactError,
    DamagedArtifact,
    check_digest,
    check_listing,
    check_seal,
    check_version,
    damaged,
    location,
    parse_manifest,
)
from rlcore.store.local import LocalFiles
from rlcore.store.tables import decode_table
from rlcore.store.tombstones import FOLDER as PRUNED
from rlcore.store.tombstones import PrunedArtifact, PrunedRecords
from schemas.artifacts import ArtifactRef, Manifest
from schemas.errors import UserError, did_you_mean


class ArtifactReader:
    """Artifacts below a local directory or an fsspec URL such as ``s3://bucket/prefix``."""

    def __init__(self, root: str | Path, cache: Path | None = None) -> None:
        """``cache``: where copies of a remote store's files are kept (default: the user's cache).

        Raises UserError when no filesystem is installed for the URL.
        """
        text = str(root).removeprefix("file://")
        if "://" in text:
            from rlcore.store.remote import RemoteFiles

            self._files: LocalFiles | RemoteFiles = RemoteFiles(text, cache)
            self.root = self._files.root
        else:
            self._files = LocalFiles(Path(text).expanduser().absolute())
            self.root = str(self._files.root)
        self.pruned = PrunedRecords(self._files.records(PRUNED))

    def find(self, kind: str, key: str) -> ArtifactRef | None:
        """Return the artifact's ref, or None where there is no manifest.

        Names and sizes are checked, and in a local store the digests too; a remote store's
        digests are checked when its files are read. Raises ArtifactError on damage.
        """
        manifest = self.peek(kind, key)
        if manifest is None:
            return None
        if isinstance(self._files, LocalFiles):
            self._check_digests(manifest)
        return self._ref(manifest)

    def peek(self, kind: str, key: str) -> Manifest | None:
        """Return the manifest of an artifact, None where there is none; no file is read.

        Raises ArtifactError when names or sizes of its files are not what was written.
        """
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

    def verify(self, ref: ArtifactRef) -> None:
        """Check names, sizes and digests of every file (a remote store's are downloaded once).

        Raises ArtifactError with the file, the fault and the remedy.
        """
        self._check_digests(self.manifest(ref))

    def check_seal(self, ref: ArtifactRef) -> bool:
        """Return whether the manifest can prove that it was not edited. Raises as the function
        ``check_seal``."""
        place = location(ref.kind, ref.key)
        return check_seal(self._files.read_manifest(place) or b"{}", self._files.uri(place))

    def table(self, ref: ArtifactRef, name: str) -> pl.DataFrame:
        """Return table ``name`` of an artifact, its digest verified and its contract checked.

        Raises ArtifactError when it is damaged, UserError when the artifact has no such table.
        """
        manifest, path = self._table_file(ref, name)
        uri, file_name = self._files.uri(location(ref.kind, ref.key)), path.name
        frame = decode_table(name, path, uri)
        if frame.height != (rows := manifest.rows.get(name)):
            raise damaged(uri, f"{uri}/{file_name} has {frame.height} rows, not {rows}")
        return frame

    def table_file(self, ref: ArtifactRef, name: str) -> Path:
        """Return the local path of the Parquet file of table ``name``, its digest verified; its
        contract was checked when it was written. Raises as ``table``."""
        return self._table_file(ref, name)[1]

    def glance(
        self, kind: str, key: str, table: str, columns: list[str] | None = None
    ) -> pl.DataFrame | None:
        """Return a table of a record, or ``columns`` of it, as it is now; None where it is gone,
        damaged, or has no such table: for what tells of a run that may be under way.

        Its digest is verified; its contract is not, which would take reading all columns.
        """
        try:
            manifest = self.peek(kind, key)
            if manifest is None or table not in manifest.rows:
                return None
            return pl.read_parquet(self.file(manifest, f"{table}.parquet"), columns=columns)
        except (ArtifactError, FileNotFoundError):
            return None

    def _table_file(self, ref: ArtifactRef, name: str) -> tuple[Manifest, Path]:
        manifest = self.manifest(ref)
        if name not in manifest.schema_versions:
            there = ", ".join(manifest.schema_versions) or "no tables"
            near = did_you_mean(name, manifest.schema_versions)
            uri = self._files.uri(location(ref.kind, ref.key))
            raise UserError(f"{uri} has no table {name!r}; it holds {there}{near}")
        return manifest, self.file(manifest, f"{name}.parquet")

    def directory(self, ref: ArtifactRef) -> Path:
        """Return a local directory with the artifact's files, verified; callers must not change
        them.

        A remote store's files are downloaded once. Raises ArtifactError on damage.
        """
        manifest = self.manifest(ref)
        folder = self._files.fetch_all(location(ref.kind, ref.key), manifest)
        self._check_digests(manifest)
        return folder

    def manifest(self, ref: ArtifactRef) -> Manifest:
        """Return the manifest behind ``ref``, names and sizes of its files checked.

        Raises PrunedArtifact when it was pruned, ArtifactError when it is gone for another reason,
        damaged, or has other content than ``ref``.
        """
        manifest = self.peek(ref.kind, ref.key)
        uri = self._files.uri(location(ref.kind, ref.key))
        if manifest is not None and manifest.sha256 == ref.sha256:
            return manifest
        if (pruned := self.pruned.of(ref)) is not None:
            raise PrunedArtifact(uri, pruned)
        if manifest is None:
            raise ArtifactError(
                f"{uri} is not in the store (its manifest is missing). "
                "Rerun the pipeline: the stage that wrote it will be run again."
            )
        raise ArtifactError(
            f"{uri} holds content {manifest.sha256[:12]}... where {ref.sha256[:12]}... "
            "was requested: it has been written again since. Rerun the pipeline."
        )

    def manifests(
        self,
        on_damage: Callable[[str], None] | None = None,
        kinds: Collection[str] | None = None,
    ) -> list[Manifest]:
        """Return the manifests of all complete artifacts (of ``kinds``) by kind and key; files
        unchecked.

        A damaged manifest is left out and reported to ``on_damage``; without a callback it raises
        DamagedArtifact.
        """
        chosen = self.kinds() if kinds is None else kinds
        places = [location(kind, key) for kind in chosen for key in self.keys(kind)]
        return self.read_manifests(places, on_damage)

    def read_manifests(
        self, places: Sequence[str], on_damage: Callable[[str], None] | None = None
    ) -> list[Manifest]:
        """Return the manifests at ``places`` (``<kind>/<key>``), without those that are gone.

        Damage is told as by ``manifests``.
        """
        found = []
        for place, raw in zip(places, self._files.read_manifests(list(places)), strict=True):
            uri, (kind, _, key) = self._files.uri(place), place.partition("/")
            try:
                if raw is not None:
                    found.append(parse_manifest(raw, uri, kind, key))
            except DamagedArtifact as damage:
                if on_damage is None:
                    raise
                on_damage(f"{uri} is left out: {damage.fault}")
        return found

    def stamps(self) -> dict[str, str]:
        """Return ``<kind>/<key>`` -> stamp of the manifest of every complete artifact, by kind and
        key: while it is the same, so is the manifest; "" where only reading it can tell.

        Raises UserError for the folder of a kind that has no kind's name.
        """
        stamps = self._files.stamps()
        for kind in self.kinds():
            location(kind, "any")
        return dict(sorted(stamps.items(), key=lambda each: each[0].split("/", 1)))

    def local_path(self, place: str, name: str, content: str) -> str:
        """Return where a file of the artifact ``place`` is, or will be once it is fetched, on this
        machine; ``content``: the artifact's digest."""
        return self._files.local_path(place, name, content)

    @property
    def index_folder(self) -> Path:
        """Where what is known of the artifacts may be kept, on this machine; no artifact."""
        return self._files.index_folder()

    def file(self, manifest: Manifest, name: str) -> Path:
        """Return the local path of one file of an artifact, its digest verified.

        Raises ArtifactError when it is damaged.
        """
        place = location(manifest.kind, manifest.key)
        path = self._files.fetch(place, name, manifest)
        if isinstance(self._files, LocalFiles):  # a copy of a remote file was checked
            check_digest(path, manifest.files[name], self._files.uri(place), name)
        return path

    def kinds(self) -> list[str]:
        """Return the sorted kinds that the store has a folder for."""
        return self._files.kinds()

    def keys(self, kind: str, prefix: str = "") -> list[str]:
        """Return the sorted keys of ``kind`` that start with ``prefix`` and have a manifest."""
        location(kind, "any")
        return sorted(self._files.locations(kind, prefix))

    def _check_digests(self, manifest: Manifest) -> None:
        for name in manifest.files:
            self.file(manifest, name)

    def _ref(self, manifest: Manifest) -> ArtifactRef:
        return manifest.ref(self._files.uri(location(manifest.kind, manifest.key)))
