"""Refs and manifests survive JSON, and hold nothing that nobody knows."""

from datetime import datetime

import pytest

from schemas.artifacts import ArtifactRef, FileEntry, Manifest

REF = ArtifactRef(kind="rollouts", key="a/000001", uri="s3://b/a", sha256="d", rows={"rollouts": 3})


def test_a_ref_travels_between_tasks_as_json() -> None:
    assert ArtifactRef.model_validate_json(REF.model_dump_json()) == REF


def test_a_manifest_keeps_its_parents_and_says_when_it_was_made() -> None:
    manifest = Manifest(
        kind="m",
        key="k",
        sha256="d",
        files={"a": FileEntry(sha256="e", bytes=1)},
        recipe_digest="r",
        code_fingerprint="c",
        parents={"rollouts": REF},
        metadata={"best": 0.5},
    )
    again = Manifest.model_validate_json(manifest.model_dump_json())
    assert again == manifest
    assert datetime.fromisoformat(again.created_at).tzinfo is not None


@pytest.mark.parametrize("field", ["owner", "SHA256"])
def test_unknown_fields_are_refused(field: str) -> None:
    """Of a newer version, which this installation would misread."""
    with pytest.raises(ValueError, match=field):
        ArtifactRef.model_validate(REF.model_dump() | {field: "x"})


def test_a_ref_cannot_be_made_to_name_other_content() -> None:
    with pytest.raises(ValueError, match="frozen"):
        REF.sha256 = "other"  # pyright: ignore[reportAttributeAccessIssue]
