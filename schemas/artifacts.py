"""References to artifacts and the manifest that makes a directory an artifact.

A stage writes its files, then ``manifest.json`` last and atomically: no manifest, no artifact.
Refs travel between Prefect tasks as JSON; data never does.
"""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MANIFEST_VERSION = "manifest/v2"  # v1 had no seal


class ArtifactRef(BaseModel):
    """Names one complete artifact and the content it must have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str = Field(description="what it is: dataset, policy, rollouts, checkpoint, ...")
    key: str = Field(description="content key within the kind; may hold slashes")
    uri: str = Field(description="location in the store that wrote it; never part of a cache key")
    sha256: str = Field(description="content digest over all files, equal to the manifest's")
    rows: dict[str, int] = Field(default_factory=dict, description="rows per table")


class FileEntry(BaseModel):
    """Digest and size of one file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    bytes: int


class Manifest(BaseModel):
    """``manifest.json``: content, schema versions and lineage of one artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str = Field(default=MANIFEST_VERSION, description="format of this manifest, name/vN")
    kind: str
    key: str
    sha256: str = Field(description="sha256 over the sorted (relative path, file sha256) pairs")
    files: dict[str, FileEntry]
    rows: dict[str, int] = Field(default_factory=dict)
    schema_versions: dict[str, str] = Field(default_factory=dict, description="table -> name/vN")
    recipe_digest: str
    code_fingerprint: str
    parents: dict[str, ArtifactRef] = Field(default_factory=dict)
    producer: str = Field(default="", description="flow run id that wrote it, or empty")
    created_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    metadata: dict[str, Any] = Field(default_factory=dict)
    seal: str = Field(default="", description="sha256 over all other entries; empty before v2")

    def ref(self, uri: str = "") -> ArtifactRef:
        """Return a reference to the artifact, at ``uri`` where that counts."""
        return ArtifactRef(
            kind=self.kind, key=self.key, uri=uri, sha256=self.sha256, rows=self.rows
        )
