"""Checks of artifacts: names, digests, the manifest, and the errors for damaged ones.

Everything here checks untrusted input (a directory on disk, a bucket), so each failure is an
``ArtifactError`` with the file, the fault and the remedy: a ``DamagedArtifact`` where the stored
artifact differs from what was written.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from rlcore.store.limits import read_json
from schemas.artifacts import MANIFEST_VERSION, FileEntry, Manifest
from schemas.errors import UserError, did_you_mean
from schemas.table_list import TABLES, added_since, schema_version

MANIFEST = "manifest.json"
_KIND = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_KEY_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+-]{0,199}")
_NOT_A_FILE = -1

# path -> (its stat as in _identity, sha256): a file is read again only when that has changed.
_DIGESTS: dict[str, tuple[tuple[int, int, int, int], str]] = {}


class ArtifactError(UserError):
    """An artifact cannot be trusted or stored: names the file, the fault and the remedy."""


class DamagedArtifact(ArtifactError):
    """The stored files differ from what was written, and only making the artifact again helps.

    A network failure, missing permissions or a newer format are not damage. ``fault``: what is
    wrong, without the remedy.
    """

    fault = ""


def damaged(uri: str, fault: str) -> DamagedArtifact:
    """Return the error for a damaged artifact; the remedy is to let its stage run again."""
    error = DamagedArtifact(
        f"{fault}. Delete {uri} and rerun: the stage that wrote it will be run again."
    )
    error.fault = fault
    return error


def location(kind: str, key: str) -> str:
    """Return ``<kind>/<key>``, the artifact's path below the store's root.

    Raises UserError for a name that could leave the root or hide from listings.
    """
    if not _KIND.fullmatch(kind):
        raise UserError(f"artifact kind {kind!r} must be lower-case letters, digits, '_' and '-'")
    if not all(_KEY_PART.fullmatch(part) for part in key.split("/")):
        raise UserError(
            f"artifact key {key!r} must be parts of letters, digits and ._=+- joined by '/', "
            "none empty and none starting with '.', '-', '+' or '='"
        )
    return f"{kind}/{key}"


def is_safe_name(name: str) -> bool:
    """Return whether ``name`` is a plain relative path inside the artifact."""
    parts = name.split("/")
    return (
        not any(part in ("", ".", "..") for part in parts)
        and not any(char in name for char in "\\\0\n")
        and PurePosixPath(name).name != MANIFEST
    )


def content_digest(files: Mapping[str, FileEntry]) -> str:
    """Return sha256 over the sorted (relative path, file sha256) pairs."""
    pairs = sorted((name, entry.sha256) for name, entry in files.items())
    return hashlib.sha256(json.dumps(pairs, ensure_ascii=False).encode()).hexdigest()


def manifest_seal(fields: Mapping[str, Any]) -> str:
    """Return sha256 over the entries of a manifest as JSON has them, without its ``seal``."""
    sealed = {name: value for name, value in fields.items() if name != "seal"}
    return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


def check_seal(raw: bytes, uri: str) -> bool:
    """Return whether the manifest in ``raw`` says what it was written with; False where it has no
    seal: of an earlier version, or taken off.

    Raises DamagedArtifact where an entry, such as a parent or the producer, was changed since.
    """
    fields = read_json(raw)
    if not fields.get("seal"):
        return False
    if manifest_seal(fields) != fields["seal"]:
        raise damaged(
            uri,
            f"{uri}/{MANIFEST} was changed after it was written: what it says of parents,"
            " producer or content is not what it was sealed with",
        )
    return True


def file_digest(path: Path) -> str:
    """Return the sha256 of a file, reading it only when its size, times or inode have changed."""
    stat = os.stat(path)
    known = _DIGESTS.get(str(path))
    if known and known[0] == _identity(stat):
        return known[1]
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    remember_digest(path, digest, stat)
    return digest


def remember_digest(path: Path, digest: str, stat: os.stat_result | None = None) -> None:
    """Record the digest of a file that this process has just read or written."""
    stat = stat or os.stat(path)
    _DIGESTS[str(path)] = (_identity(stat), digest)


def _identity(stat: os.stat_result) -> tuple[int, int, int, int]:
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def parse_manifest(raw: bytes, uri: str, kind: str, key: str) -> Manifest:
    """Return the manifest in ``raw``, checked to be valid, of this artifact, and safe.

    Raises DamagedArtifact when it is not JSON, of another artifact, inconsistent, or names a file
    outside the artifact; ArtifactError when it is of a newer format.
    """
    where = f"{uri}/{MANIFEST}"
    try:
        fields = read_json(raw)
    except ValueError as error:
        raise damaged(uri, f"{where} is not JSON ({error})") from None
    version = fields.get("version") if isinstance(fields, dict) else None
    refuse_newer(str(version), MANIFEST_VERSION, where)
    try:
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"]) or "the document"
        raise damaged(uri, f"{where} is not a valid manifest: {path}: {first['msg']}") from None
    if (manifest.kind, manifest.key) != (kind, key):
        raise damaged(
            uri,
            f"{where} belongs to {manifest.kind}/{manifest.key}, not to {kind}/{key}: "
            "it was copied or moved here by hand",
        )
    for name in manifest.files:
        if not is_safe_name(name):
            raise damaged(uri, f"{where} names the file {name!r}, which is outside the artifact")
    if content_digest(manifest.files) != manifest.sha256:
        raise damaged(uri, f"{where} contradicts itself: its sha256 is not that of its files")
    return manifest


def refuse_newer(found: str, known: str, where: str) -> None:
    """Raise ArtifactError when ``found`` (name/vN) is a later version of ``known``."""
    name, _, number = found.rpartition("/v")
    known_name, _, known_number = known.rpartition("/v")
    if name == known_name and number.isdecimal() and int(number) > int(known_number):
        raise ArtifactError(
            f"{where} has schema {found}, newer than {known}, the latest this installation reads. "
            "Update the installation, or point the store at another root."
        )


def check_listing(manifest: Manifest, listing: Mapping[str, int], uri: str) -> None:
    """Raise DamagedArtifact unless the files below ``uri`` are the manifest's, in full size.

    ``listing``: relative path -> bytes, without the manifest; -1 marks anything but a regular file.
    """
    for name, entry in manifest.files.items():
        size = listing.get(name)
        if size is None:
            raise damaged(uri, f"{uri}/{name} is missing")
        if size == _NOT_A_FILE:
            raise damaged(uri, f"{uri}/{name} is a link or device, not a regular file")
        if size != entry.bytes:
            raise damaged(uri, f"{uri}/{name} has {size} bytes where {entry.bytes} were written")
    if extra := sorted(set(listing) - set(manifest.files)):
        raise damaged(uri, f"{uri}/{extra[0]} is not in the manifest")


def check_digest(path: Path, entry: FileEntry, uri: str, name: str) -> None:
    """Raise DamagedArtifact unless the file has the content recorded in the manifest."""
    try:
        found = file_digest(path)
    except FileNotFoundError:
        raise damaged(uri, f"{uri}/{name} is missing") from None
    if found != entry.sha256:
        raise damaged(
            uri,
            f"{uri}/{name} was changed after it was written: its sha256 is {found[:12]}..., "
            f"the manifest says {entry.sha256[:12]}...",
        )


def check_version(name: str, found: str, where: str, uri: str) -> tuple[str, ...]:
    """Return the columns that table ``name`` lacks in files of schema version ``found``.

    Raises ArtifactError where files of that version are not read.
    """
    known = schema_version(check_table_name(name))
    refuse_newer(found, known, where)
    added = added_since(name, found)
    if added is None:
        raise damaged(uri, f"{where} has schema {found or 'none'!r} where {known} is read")
    return added


def check_table_name(name: str) -> str:
    """Return ``name`` if a contract has it; raises UserError with the nearest name otherwise."""
    if name not in TABLES:
        raise UserError(
            f"table {name!r} has no contract in schemas/tables.py; "
            f"there are {', '.join(TABLES)}{did_you_mean(name, TABLES)}"
        )
    return name
