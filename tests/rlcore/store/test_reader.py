"""Damage in the store: each file that cannot be trusted is refused by name, with the remedy."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from rlcore.store.checks import content_digest
from schemas.artifacts import ArtifactRef, FileEntry
from schemas.errors import UserError

LINEAGE = Lineage(recipe_digest="r", code_fingerprint="c")
MEND = "Delete .*/m/k and rerun: the stage that wrote it will be run again"


def frame(rows: int = 50) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "stage": ["rl"] * rows,
            "step": list(range(rows)),
            "name": ["loss"] * rows,
            "value": [1.0] * rows,
        }
    )


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.bin").write_bytes(b"w" * 1000)
    store = ArtifactStore(tmp_path / "store")
    store.put("m", "k", tables={"metrics": frame()}, directory=model, lineage=LINEAGE)
    return tmp_path / "store" / "m" / "k"


def overwrite(path: Path, content: bytes) -> None:
    """Change a file as a stray program would: in place, at a later time."""
    path.write_bytes(content)
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 5))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    overwrite(path, bytes(content))


def edit(path: Path, change: Callable[[dict], object]) -> None:
    fields = json.loads((path / "manifest.json").read_text())
    change(fields)
    files = {name: FileEntry(**entry) for name, entry in fields["files"].items()}
    fields["sha256"] = content_digest(files)
    (path / "manifest.json").write_text(json.dumps(fields))


def escape(fields: dict) -> None:
    fields["files"]["../../secret"] = fields["files"]["weights.bin"]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped bit": (lambda a: flip(a / "metrics.parquet"), "metrics.parquet was changed after"),
    "flipped weight": (lambda a: flip(a / "weights.bin"), "weights.bin was changed after"),
    "truncated": (
        lambda a: overwrite(a / "metrics.parquet", (a / "metrics.parquet").read_bytes()[:200]),
        "metrics.parquet has 200 bytes where",
    ),
    "emptied": (lambda a: overwrite(a / "weights.bin", b""), "weights.bin has 0 bytes where 1000"),
    "missing": (lambda a: (a / "metrics.parquet").unlink(), "metrics.parquet is missing"),
    "foreign": (lambda a: (a / "notes.txt").write_text("hi"), "notes.txt is not in the manifest"),
    "foreign deep": (
        lambda a: ((a / "sub").mkdir(), (a / "sub" / "x").write_text("")),
        "sub/x is not in the manifest",
    ),
    "link": (
        lambda a: ((a / "weights.bin").unlink(), (a / "weights.bin").symlink_to("/etc/hostname")),
        "weights.bin is a link or device",
    ),
    "manifest cut short": (
        lambda a: (a / "manifest.json").write_text('{"kind": "m", "key'),
        "manifest.json is not JSON",
    ),
    "manifest empty": (lambda a: (a / "manifest.json").write_bytes(b""), "manifest.json is not JS"),
    "manifest binary": (
        lambda a: (a / "manifest.json").write_bytes(b"\xff\xfe\0"),
        "manifest.json is not JSON",
    ),
    "manifest a list": (lambda a: (a / "manifest.json").write_text("[]"), "not a valid manifest"),
    "manifest of others": (
        lambda a: (a / "manifest.json").write_text('{"name": "web app"}'),
        "manifest.json is not a valid manifest: kind: Field required",
    ),
    "manifest moved": (
        lambda a: edit(a, lambda fields: fields.update(key="other")),
        "belongs to m/other, not to m/k",
    ),
    "manifest edited": (
        lambda a: (a / "manifest.json").write_text(
            (a / "manifest.json").read_text().replace('"bytes": 1000', '"bytes": 1000, "x": 1')
        ),
        "not a valid manifest: files.weights.bin.x",
    ),
    "manifest digest": (
        lambda a: (a / "manifest.json").write_text(
            json.dumps(json.loads((a / "manifest.json").read_text()) | {"sha256": "0" * 64})
        ),
        "contradicts itself",
    ),
    "path traversal": (lambda a: edit(a, escape), "'../../secret', which is outside the artifact"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_refused_by_name_with_the_remedy(case: str, artifact: Path) -> None:
    damage, sentence = DAMAGE[case]
    damage(artifact)
    store = ArtifactStore(artifact.parents[1])
    with pytest.raises(ArtifactError, match=sentence) as caught:
        store.find("m", "k")
    caught.match(MEND)
    with pytest.raises(ArtifactError, match=sentence):
        store.put("m", "k", tables={"metrics": frame()}, lineage=LINEAGE)


def test_the_remedy_works(artifact: Path) -> None:
    flip(artifact / "metrics.parquet")
    store = ArtifactStore(artifact.parents[1])
    store.discard("m", "k")
    store.verify(store.put("m", "k", tables={"metrics": frame()}, lineage=LINEAGE))


def test_damage_after_a_first_good_read_is_seen(artifact: Path) -> None:
    """Verified digests are remembered; a file that changes meanwhile must be read again."""
    store = ArtifactStore(artifact.parents[1])
    ref = store.find("m", "k")
    assert ref is not None
    store.table(ref, "metrics")
    flip(artifact / "metrics.parquet")
    for use in (lambda: store.table(ref, "metrics"), lambda: store.verify(ref)):
        with pytest.raises(ArtifactError, match=r"metrics.parquet was changed after"):
            use()
    with pytest.raises(ArtifactError, match=r"metrics.parquet was changed after"):
        store.directory(ref)


@pytest.mark.parametrize("field", ["manifest", "table"])
def test_a_newer_schema_asks_for_an_update(field: str, artifact: Path) -> None:
    """The remedy differs: deleting would lose what a newer installation wrote."""

    def age(fields: dict) -> None:
        if field == "manifest":
            fields["version"] = "manifest/v3"
            fields["new_field"] = True
        else:
            fields["schema_versions"]["metrics"] = "metrics/v12"

    edit(artifact, age)
    store = ArtifactStore(artifact.parents[1])
    with pytest.raises(
        ArtifactError, match=r"newer than .*/v\d.*Update the installation"
    ) as caught:
        store.find("m", "k")
    assert "Delete" not in str(caught.value)


def _replace_table(artifact: Path, content: bytes) -> ArtifactRef:
    """Put ``content`` in place of the table under a manifest that agrees: a faulty writer."""
    (artifact / "metrics.parquet").write_bytes(content)
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    edit(artifact, lambda fields: fields["files"].update({"metrics.parquet": entry}))
    ref = ArtifactStore(artifact.parents[1]).find("m", "k")
    assert ref is not None
    return ref


def test_a_forged_artifact_is_accepted(artifact: Path) -> None:
    """Digests find damage; who can write to a store can write them too (docs/do/secure.md)."""
    manifest = json.loads((artifact / "manifest.json").read_text())
    name = next(name for name in manifest["files"] if not name.endswith(".parquet"))
    (artifact / name).write_bytes(b"forged")
    digest = hashlib.sha256(b"forged").hexdigest()
    manifest["files"][name] = {"sha256": digest, "bytes": 6}
    entries = {name: FileEntry(**entry) for name, entry in manifest["files"].items()}
    manifest["sha256"] = content_digest(entries)
    (artifact / "manifest.json").write_text(json.dumps(manifest))
    store = ArtifactStore(artifact.parents[1])
    ref = store.find(manifest["kind"], manifest["key"])
    assert ref is not None
    assert (store.directory(ref) / name).read_bytes() == b"forged"


def test_a_foreign_parquet_is_refused(artifact: Path, tmp_path: Path) -> None:
    frame().write_parquet(tmp_path / "theirs.parquet")
    ref = _replace_table(artifact, (tmp_path / "theirs.parquet").read_bytes())
    with pytest.raises(ArtifactError, match=r"metrics.parquet has schema 'none' where metrics/v1"):
        ArtifactStore(artifact.parents[1]).table(ref, "metrics")


def test_what_is_no_parquet_is_refused(artifact: Path) -> None:
    ref = _replace_table(artifact, b"step,value\n1,2\n")
    with pytest.raises(ArtifactError, match=r"metrics.parquet is not a readable Parquet file"):
        ArtifactStore(artifact.parents[1]).table(ref, "metrics")


def test_a_table_that_breaks_its_contract_is_refused_on_read(
    artifact: Path, tmp_path: Path
) -> None:
    frame().with_columns(step=pl.lit(-1, pl.Int64)).write_parquet(
        tmp_path / "bad.parquet", metadata={"rlp.schema": "metrics/v1"}
    )
    ref = _replace_table(artifact, (tmp_path / "bad.parquet").read_bytes())
    with pytest.raises(ArtifactError, match=r"breaks its contract metrics/v1") as caught:
        ArtifactStore(artifact.parents[1]).table(ref, "metrics")
    caught.match("row 0: -1")


def test_rows_that_the_manifest_does_not_know_are_refused(artifact: Path) -> None:
    edit(artifact, lambda fields: fields["rows"].update(metrics=49))
    store = ArtifactStore(artifact.parents[1])
    ref = store.find("m", "k")
    assert ref is not None
    with pytest.raises(ArtifactError, match=r"metrics.parquet has 50 rows, not 49"):
        store.table(ref, "metrics")


def test_a_table_that_an_artifact_lacks_is_named(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    ref = store.put("m", "k", tables={"metrics": frame()}, lineage=LINEAGE)
    with pytest.raises(UserError, match=r"has no table 'metric'; it holds metrics; did you mean"):
        store.table(ref, "metric")


def test_a_ref_to_what_is_gone_or_replaced_is_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    ref = store.put("m", "k", tables={"metrics": frame()}, lineage=LINEAGE)
    other = ArtifactRef(kind="m", key="k", uri=ref.uri, sha256="0" * 64)
    with pytest.raises(ArtifactError, match=r"000000000000... was requested: it has been written"):
        store.table(other, "metrics")
    store.discard("m", "k")
    with pytest.raises(ArtifactError, match=r"m/k is not in the store \(its manifest is missing\)"):
        store.manifest(ref)
