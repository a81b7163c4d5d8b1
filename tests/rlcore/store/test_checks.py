"""Names, listings and manifests from outside are judged before anything of them is used."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlcore.store.checks import (
    ArtifactError,
    DamagedArtifact,
    check_listing,
    content_digest,
    file_digest,
    is_safe_name,
    location,
    parse_manifest,
    refuse_newer,
)
from schemas.artifacts import FileEntry, Manifest
from schemas.errors import UserError

FILES = {"a.bin": FileEntry(sha256="a" * 64, bytes=3), "sub/b": FileEntry(sha256="b" * 64, bytes=0)}
MANIFEST = Manifest(
    kind="m",
    key="k",
    sha256=content_digest(FILES),
    files=FILES,
    recipe_digest="r",
    code_fingerprint="c",
)


def parsed(**changes: Any) -> Manifest:
    fields = json.loads(MANIFEST.model_dump_json()) | changes
    return parse_manifest(json.dumps(fields).encode(), "store/m/k", "m", "k")


@pytest.mark.parametrize("key", ["k", "abc/000007", "a=1/b+2", "_x", "v1.2", "0" * 200])
def test_a_key_of_ours_is_a_place_below_the_root(key: str) -> None:
    assert location("rollouts", key) == f"rollouts/{key}"


@pytest.mark.parametrize(
    "key", ["", "/", "a//b", "../x", "a/..", ".hidden", "-rf", "a b", "a\nb", "a/", "ä", "0" * 201]
)
def test_a_key_that_could_leave_the_root_or_hide_is_refused(key: str) -> None:
    with pytest.raises(UserError, match=r"artifact key .* must be parts of letters, digits"):
        location("m", key)


@pytest.mark.parametrize("kind", ["", "M", "1a", "a/b", ".staging", "..", "a b"])
def test_a_kind_that_could_leave_the_root_or_hide_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match=r"artifact kind .* must be lower-case"):
        location(kind, "k")


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("weights.bin", True),
        ("sub/weights.bin", True),
        ("..weights", True),
        ("../x", False),
        ("sub/../../x", False),
        ("/etc/passwd", False),
        ("sub//x", False),
        ("./x", False),
        ("", False),
        ("a\\b", False),
        ("a\0b", False),
        ("a\nb", False),
        ("manifest.json", False),
        ("sub/manifest.json", False),
    ],
)
def test_a_file_name_stays_inside_its_artifact(name: str, safe: bool) -> None:
    assert is_safe_name(name) is safe


def test_a_digest_is_of_names_and_contents_in_any_order() -> None:
    assert content_digest(dict(reversed(FILES.items()))) == content_digest(FILES)
    assert content_digest({"a.bin": FILES["sub/b"], "sub/b": FILES["a.bin"]}) != content_digest(
        FILES
    )
    assert content_digest({"x": FILES["a.bin"]}) != content_digest({"y": FILES["a.bin"]})


def test_our_own_manifest_is_taken() -> None:
    assert parsed() == MANIFEST


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"key": "other"}, "belongs to m/other, not to m/k: it was copied or moved here by hand"),
        ({"sha256": "0" * 64}, "contradicts itself: its sha256 is not that of its files"),
        ({"files": []}, "is not a valid manifest: files: "),
        ({"extra": 1}, "is not a valid manifest: extra: "),
    ],
)
def test_a_manifest_that_cannot_be_true_is_damage_with_its_mend(
    changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(DamagedArtifact) as error:
        parsed(**changes)
    assert fault in error.value.fault
    assert str(error.value).endswith(
        "Delete store/m/k and rerun: the stage that wrote it will be run again."
    )


@pytest.mark.parametrize("version", ["manifest/v3", "manifest/v10"])
def test_a_newer_manifest_is_no_damage(version: str) -> None:
    """The mend of damage is to delete: it would lose what a newer installation wrote."""
    with pytest.raises(ArtifactError, match="Update the installation") as error:
        parsed(version=version, new_field=1)
    assert not isinstance(error.value, DamagedArtifact)


@pytest.mark.parametrize("found", ["t/v3", "t/v2", "u/v9", "t/vx", "t", "", "None"])
def test_only_a_later_version_of_one_name_is_newer(found: str) -> None:
    refuse_newer(found, "t/v3", "here")


@pytest.mark.parametrize(
    ("listing", "fault"),
    [
        ({"a.bin": 3}, "sub/b is missing"),
        ({"a.bin": 2, "sub/b": 0}, "a.bin has 2 bytes where 3 were written"),
        ({"a.bin": -1, "sub/b": 0}, "a.bin is a link or device, not a regular file"),
        ({"a.bin": 3, "sub/b": 0, "z": 1, "c": 1}, "c is not in the manifest"),
    ],
)
def test_files_that_are_not_the_manifests_are_named(listing: dict[str, int], fault: str) -> None:
    check_listing(MANIFEST, {"a.bin": 3, "sub/b": 0}, "store/m/k")
    with pytest.raises(DamagedArtifact) as error:
        check_listing(MANIFEST, listing, "store/m/k")
    assert error.value.fault == f"store/m/k/{fault}"


def test_a_file_that_changed_is_digested_anew(tmp_path: Path) -> None:
    """Same size, same name: only its time and content tell."""
    path = tmp_path / "f"
    path.write_bytes(b"one")
    first = file_digest(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    assert file_digest(path) != first
