"""What was pruned: the manifests of removed artifacts, with the date and the reason.

``<store>/.pruned/<first part of the keys>~<random>.json`` is written whole before the first of its
artifacts loses its own manifest, and never changed. It counts only for what is not in the store: a
prune that was cut short, or an artifact that was made again, needs no correction.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlcore.store.checks import ArtifactError

if TYPE_CHECKING:
    from schemas.artifacts import ArtifactRef, Manifest

FOLDER = ".pruned"
SEPARATOR = "~"  # in no key
DATE_CHARS = len("2026-01-31")
Place = tuple[str, str, str]  # kind, key, sha256


@dataclass(frozen=True, slots=True)
class Pruned:
    """An artifact that was removed: its manifest as JSON values, when (ISO 8601, UTC), and why."""

    fields: Mapping[str, Any]
    at: str
    reason: str

    @property
    def manifest(self) -> "Manifest":
        """Its manifest."""
        from schemas.artifacts import Manifest

        return Manifest.model_validate(self.fields)

    def sentence(self) -> str:
        """Return when and why it went."""
        return f"pruned on {self.at[:DATE_CHARS]}: {self.reason}"


class PrunedArtifact(ArtifactError):
    """An artifact that was removed by ``rl-pipeline store gc``; ``pruned`` says what it was."""

    def __init__(self, uri: str, pruned: Pruned) -> None:
        super().__init__(
            f"{uri} was {pruned.sentence()}. Its stage makes it again: run the recipe or, where the"
            " stage's result is still there, rl-pipeline rerun RUN --from STAGE."
        )
        self.pruned = pruned


def group_of(key: str) -> str:
    """Return the key whose lease covers ``key``, and by which what was pruned of it is found: that
    of its stage, its first part."""
    return key.partition("/")[0]


def encode(manifests: "Sequence[Manifest]", reasons: Sequence[str]) -> bytes:
    """Return the document of artifacts that are pruned now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    rows = [
        {"at": now, "reason": reason, "manifest": manifest.model_dump(mode="json")}
        for manifest, reason in zip(manifests, reasons, strict=True)
    ]
    return json.dumps(rows).encode()


def decode(document: bytes) -> dict[Place, Pruned]:
    """Return what ``encode`` was given."""
    found = {}
    for row in json.loads(document):
        fields = row["manifest"]
        place = fields["kind"], fields["key"], fields["sha256"]
        found[place] = Pruned(fields, row["at"], row["reason"])
    return found


class Documents(Protocol):
    """Where the documents are: each is written once, and never changed."""

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with ``prefix``, sorted."""
        ...

    def read(self, name: str) -> bytes:
        """Return the content of one."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write one; it is there whole, and outlives a loss of power, when this returns."""
        ...


@dataclass(frozen=True)
class LocalDocuments:
    """Documents in ``folder``; ``stage`` makes a folder on the same filesystem."""

    folder: Path
    stage: Callable[[], Path]

    def names(self, prefix: str) -> list[str]:
        """See ``Documents``."""
        if not self.folder.is_dir():
            return []
        return sorted(name for name in os.listdir(self.folder) if name.startswith(prefix))

    def read(self, name: str) -> bytes:
        """See ``Documents``."""
        return (self.folder / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """See ``Documents``. Raises ArtifactError where the disk is full or read-only."""
        staged = self.stage()
        try:
            with open(staged / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self.folder.mkdir(exist_ok=True)
            os.replace(staged / name, self.folder / name)
            handle = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise ArtifactError(
                f"{self.folder / name} could not be written: {os.strerror(error.errno or 0)}."
                " Nothing was removed; free space or fix the permissions, then try again."
            ) from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)


class RemoteDocuments:
    """Documents below ``top`` of an fsspec filesystem."""

    def __init__(
        self, fs: Any, top: str, translate_errors: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._fs, self._top, self._translate_errors = fs, top, translate_errors

    def names(self, prefix: str) -> list[str]:
        """See ``Documents``."""
        with self._translate_errors(f"list {self._top}"):
            self._fs.invalidate_cache()
            paths = self._fs.glob(f"{self._top}/{prefix}*")
        return sorted(str(path).rpartition("/")[2] for path in paths)

    def read(self, name: str) -> bytes:
        """See ``Documents``."""
        with self._translate_errors(f"read {self._top}/{name}"):
            return self._fs.cat_file(f"{self._top}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """See ``Documents``."""
        with self._translate_errors(f"write {self._top}/{name}"):
            self._fs.pipe_file(f"{self._top}/{name}", content)


class PrunedRecords:
    """What the documents of one store say; each is read once."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._known: dict[str, dict[Place, Pruned]] = {}

    def below(self, group: str | None = None) -> dict[Place, Pruned]:
        """Return what was pruned of the keys whose first part is ``group``, or of all; of an
        artifact that was pruned twice the last time."""
        prefix = "" if group is None else f"{group}{SEPARATOR}"
        for name in self._documents.names(prefix):
            if name not in self._known:
                self._known[name] = decode(self._documents.read(name))
        found: dict[Place, Pruned] = {}
        for name, rows in self._known.items():
            if name.startswith(prefix):
                for place, pruned in rows.items():
                    if place not in found or found[place].at < pruned.at:
                        found[place] = pruned
        return found

    def of(self, ref: "ArtifactRef") -> Pruned | None:
        """Return what is known of one artifact, None where it was not pruned."""
        return self.below(group_of(ref.key)).get((ref.kind, ref.key, ref.sha256))
