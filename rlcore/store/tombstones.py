"""What was pruned: the manifests of removed artifacts, with the date and the reason.

``<store>/.pruned/<first part of the keys>~<random>.json`` is written whole before the first of its
artifacts loses its own manifest, and never changed. It counts only for what is not in the store: a
prune that was cut short, or an artifact that was made again, needs no correction.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rlcore.store.checks import ArtifactError
from rlcore.store.records import RecordStore
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
    def manifest(self) -> Manifest:
        """Its manifest."""
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


def encode(manifests: Sequence[Manifest], reasons: Sequence[str]) -> bytes:
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


class PrunedRecords:
    """What the documents of one store say; each is read once."""

    def __init__(self, documents: RecordStore) -> None:
        self._documents = documents
        self._known: dict[str, dict[Place, Pruned]] = {}

    def below(self, group: str | None = None) -> dict[Place, Pruned]:
        """Return what was pruned of the keys whose first part is ``group``, or of all; of an
        artifact that was pruned twice the last time."""
        prefix = "" if group is None else f"{group}{SEPARATOR}"
        for name in self._documents.names(prefix):
            if name not in self._known and (document := self._documents.read(name)) is not None:
                self._known[name] = decode(document.content)
        found: dict[Place, Pruned] = {}
        for name, rows in self._known.items():
            if name.startswith(prefix):
                for place, pruned in rows.items():
                    if place not in found or found[place].at < pruned.at:
                        found[place] = pruned
        return found

    def of(self, ref: ArtifactRef) -> Pruned | None:
        """Return what is known of one artifact, None where it was not pruned."""
        return self.below(group_of(ref.key)).get((ref.kind, ref.key, ref.sha256))
