"""Artifacts in an object store behind an fsspec URL (``s3://bucket/prefix``): manifest last.

Readers get local copies from a cache (``rlcore.store.cache``) that is addressed by content, so it
cannot return a stale copy; a damaged one is downloaded again.
"""

import hashlib
import logging
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import fsspec

from rlcore.store.cache import Cache, most_bytes, note_origin
from rlcore.store.checks import MANIFEST, ArtifactError, check_digest, file_digest
from rlcore.store.records import RemoteRecords
from schemas.artifacts import Manifest
from schemas.errors import UserError

# Under what names filesystems list what changes with a file: s3fs, gcsfs, adlfs, sftp, memory.
_VERSIONS_OF_A_FILE = (
    "ETag",
    "etag",
    "LastModified",
    "updated",
    "last_modified",
    "mtime",
    "created",
)
logger = logging.getLogger(__name__)


class RemoteFiles:
    """Files of the artifacts below the fsspec URL ``root``; a location is ``<kind>/<key>``."""

    def __init__(self, root: str, cache: Path | None) -> None:
        self.root = root.rstrip("/")
        self._cache = Cache(cache or _default_cache(), most_bytes())
        try:
            self._fs, self._top = fsspec.url_to_fs(self.root)
        except (ValueError, ImportError) as error:
            raise UserError(
                f"artifact store {root!r} cannot be opened: {error}. "
                "Give a local directory or the URL of an installed fsspec filesystem."
            ) from None
        self._errors = _errors_of(self.root)

    def uri(self, location: str) -> str:
        """Return the URL of an artifact."""
        return f"{self.root}/{location}"

    def read_manifest(self, location: str) -> bytes | None:
        """Return the bytes of the manifest, or None where there is none."""
        with self._translate_errors(f"read {self.uri(location)}"):
            try:
                return self._fs.cat_file(self._path(location, MANIFEST))
            except FileNotFoundError:
                return None

    def read_manifests(self, locations: list[str]) -> list[bytes | None]:
        """Return the manifests in the order asked, fetched together; None for one that is gone."""
        if not locations:
            return []
        paths = [self._path(location, MANIFEST) for location in locations]
        # Some filesystems return bare bytes for a list of one element.
        found = {paths[0]: self.read_manifest(locations[0])}
        with self._translate_errors(f"read manifests below {self.root}"):
            if len(paths) > 1:
                found.update(self._fs.cat(paths[1:], on_error="omit"))
        return [found.get(path) for path in paths]

    def stamps(self) -> dict[str, str]:
        """Return location -> what the listing says of the manifest of every complete artifact:
        size, ETag (of the content) and time; "" where it gives neither of these two."""
        found: dict[str, str] = {}
        for kind in self.kinds():
            for path, info in self._find(kind).items():
                folder, name = posixpath.split(path)
                if name == MANIFEST:
                    location = f"{kind}/{posixpath.relpath(folder, self._path(kind))}"
                    found[location] = _listed_stamp(info)
        return found

    def local_path(self, location: str, name: str, content: str) -> str:
        """Return where the local copy of one file of an artifact is, or will be; ``content``: the
        artifact's digest."""
        return str(self._cache.path(content, name))

    def index_folder(self) -> Path:
        """Return the local folder of what readers remember of this store."""
        return self._cache.folder / ".index" / hashlib.sha256(self.root.encode()).hexdigest()[:32]

    def listing(self, location: str) -> dict[str, int]:
        """Return relative path -> bytes of everything in the artifact but its manifest."""
        top, found = self._path(location), self._find(location)
        sizes = {posixpath.relpath(path, top): int(info["size"]) for path, info in found.items()}
        sizes.pop(MANIFEST, None)
        return sizes

    def fetch(self, location: str, name: str, manifest: Manifest) -> Path:
        """Return the path of a local copy of one file, downloaded and verified once.

        Raises DamagedArtifact when the download differs from the digest in the manifest.
        """
        entry = manifest.files[name]
        target = Path(self.local_path(location, name, manifest.sha256))
        self._cache.use(manifest.sha256)
        if target.exists() and file_digest(target) != entry.sha256:
            logger.warning(
                f"{target} was changed after it was downloaded; it is downloaded from"
                f" {self.uri(location)} again"
            )
            target.unlink()
        if not target.exists():
            partial = self._cache.partial()
            try:
                with self._translate_errors(f"download {self.uri(location)}/{name}"):
                    self._fs.get_file(self._path(location, name), str(partial))
                check_digest(partial, entry, self.uri(location), name)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(partial, target)
            finally:
                partial.unlink(missing_ok=True)
            self._cache.added(entry.bytes)
        return target

    def fetch_all(self, location: str, manifest: Manifest) -> Path:
        """Return a local directory that holds all files of an artifact, until this process ends."""
        folder = self._cache.hand_out(manifest.sha256)
        note_origin(folder, self.root, manifest.ref(self.uri(location)))
        for name in manifest.files:
            self.fetch(location, name, manifest)
        return folder

    def locations(self, kind: str, prefix: str) -> Iterator[str]:
        """Yield the keys of ``kind`` that start with ``prefix`` and have a manifest, unsorted."""
        for path in self._find(kind, prefix.rpartition("/")[0]):
            folder, name = posixpath.split(path)
            key = posixpath.relpath(folder, self._path(kind))
            if name == MANIFEST and key.startswith(prefix):
                yield key

    def kinds(self) -> list[str]:
        """Return the kinds that have a folder."""
        with self._translate_errors(f"list {self.root}"):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._top, detail=True)
            except FileNotFoundError:
                return []
        folders = (info["name"].rstrip("/") for info in found if info["type"] == "directory")
        names = (posixpath.basename(folder) for folder in folders)
        return sorted(name for name in names if not name.startswith("."))

    def records(self, folder: str) -> RemoteRecords:
        """Return the documents in a folder of the store."""
        return RemoteRecords(self._fs, self._path(folder), self._translate_errors)

    def publish(
        self,
        location: str,
        contents: Mapping[str, bytes | Path],
        manifest: Manifest,
        fence: Callable[[], AbstractContextManager[None]],
    ) -> bool:
        """Upload the files, check that they arrived in full, upload the manifest. Always True.

        Each write enters ``fence`` first, which raises once another holder may write here. Raises
        ArtifactError when a request fails; nothing counts as stored then.
        """
        with self._translate_errors(f"write {self.uri(location)}"):
            with fence():
                for name in self.listing(location):
                    self._fs.rm_file(self._path(location, name))
            for name, content in contents.items():
                path = self._path(location, name)
                with fence():
                    if isinstance(content, bytes):
                        self._fs.pipe_file(path, content)
                    else:
                        self._fs.put_file(str(content), path)
            arrived = self.listing(location)
            for name, entry in manifest.files.items():
                if arrived.get(name) != entry.bytes:
                    raise ArtifactError(
                        f"{self.uri(location)}/{name}: {arrived.get(name, 0)} of {entry.bytes}"
                        " bytes arrived. Nothing was stored; rerun."
                    )
            document = manifest.model_dump_json(indent=1).encode()
            with fence():
                self._fs.pipe_file(self._path(location, MANIFEST), document)
        return True

    def remove(self, location: str) -> None:
        """Remove an artifact: its manifest first, so that no reader sees half of it."""
        with self._translate_errors(f"remove {self.uri(location)}"):
            names = [MANIFEST] if self.read_manifest(location) is not None else []
            for name in [*names, *self.listing(location)]:
                self._fs.rm_file(self._path(location, name))

    def leftovers(self, kind: str) -> dict[str, int]:
        """Return location -> bytes of folders of ``kind`` with files and without a manifest at or
        above: what a removal or an upload that was killed left."""
        return _without_manifest(self._find(kind), self._path(kind))

    def _find(self, location: str, folder: str = "") -> dict[str, dict[str, Any]]:
        """Return what is listed now of the files below ``folder`` of a location, by path."""
        top = posixpath.join(self._path(location), folder).rstrip("/")
        with self._translate_errors(f"list {self.uri(location)}"):
            self._fs.invalidate_cache()
            return self._fs.find(top, detail=True)

    def _path(self, *parts: str) -> str:
        return "/".join([self._top.rstrip("/"), *parts])

    @contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        """Raise a network or server error as one sentence."""
        try:
            yield
        except UserError:
            raise
        except self._errors as error:
            raise ArtifactError(
                f"could not {action}: {type(error).__name__}: {error}. Check the store's URL, "
                "that its bucket exists, the credentials and the endpoint (AWS_* variables "
                "for s3), then rerun."
            ) from error


def _without_manifest(listing: Mapping[str, Mapping[str, Any]], top: str) -> dict[str, int]:
    """Return ``<kind>/<folder>`` -> bytes of files of the kind's folder ``top`` with no manifest in
    their folder or above."""
    whole = {posixpath.dirname(path) for path in listing if posixpath.basename(path) == MANIFEST}
    found: dict[str, int] = {}
    for path, info in listing.items():
        folder = above = posixpath.dirname(path)
        while above not in whole and len(above) > len(top):
            above = posixpath.dirname(above)
        if above not in whole and folder != top:
            location = posixpath.relpath(folder, posixpath.dirname(top))
            found[location] = found.get(location, 0) + int(info["size"])
    return found


def _listed_stamp(info: Mapping[str, Any]) -> str:
    said = [str(info[key]) for key in _VERSIONS_OF_A_FILE if info.get(key)]
    return " ".join([str(info["size"]), *said]) if said else ""


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rl-pipeline" / "artifacts"


def _errors_of(root: str) -> tuple[type[Exception], ...]:
    """Return the exceptions of the filesystem of ``root``; those of botocore are not OSErrors."""
    if not root.startswith(("s3://", "s3a://")):
        return (OSError,)
    from botocore.exceptions import BotoCoreError

    return (OSError, BotoCoreError)
