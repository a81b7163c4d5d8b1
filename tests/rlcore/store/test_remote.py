"""The artifact store behind a URL: a real S3 server (moto over HTTP) and fsspec's memory."""

from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pytest
from botocore.exceptions import ReadTimeoutError

from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from rlcore.store.remote import RemoteFiles
from schemas.errors import UserError

LINEAGE = Lineage(recipe_digest="r", code_fingerprint="c")
FRAME = pl.DataFrame({"stage": ["rl"], "step": [0], "name": ["loss"], "value": [1.0]})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "sub" / "weights.bin").write_bytes(b"w" * 100_000)
    return tmp_path / "model"


def test_an_artifact_round_trips_through_s3(bucket: str, model: Path, tmp_path: Path) -> None:
    store = ArtifactStore(bucket, cache=tmp_path / "cache")
    ref = store.put("m", "a/1", tables={"metrics": FRAME}, directory=model, lineage=LINEAGE)
    assert ref.uri == "s3://artifacts/runs/m/a/1"
    other = ArtifactStore(bucket, cache=tmp_path / "other")
    assert other.find("m", "a/1") == ref
    assert other.table(ref, "metrics").equals(FRAME)
    folder = other.directory(ref)
    assert (folder / "sub" / "weights.bin").read_bytes() == b"w" * 100_000
    other.verify(ref)
    assert store.put("m", "a/1", tables={"metrics": FRAME}, lineage=LINEAGE) == ref
    store.put("m", "a/2", tables={"metrics": FRAME}, lineage=LINEAGE)
    assert store.keys("m", "a/") == ["a/1", "a/2"]
    assert [m.key for m in other.manifests()] == ["a/1", "a/2"]
    store.discard("m", "a/1")
    assert other.find("m", "a/1") is None
    assert other.keys("m") == ["a/2"]


def test_local_and_s3_agree_on_digests(bucket: str, tmp_path: Path) -> None:
    """A run that moves to a bucket must find its cache there."""
    refs = [
        ArtifactStore(root).put("m", "k", tables={"metrics": FRAME}, lineage=LINEAGE)
        for root in (bucket, str(tmp_path / "local"))
    ]
    assert refs[0].sha256 == refs[1].sha256


def test_files_without_a_manifest_are_not_an_artifact(bucket: str, tmp_path: Path) -> None:
    """A writer killed during its upload leaves files; the next one starts over."""
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    fs.pipe_file("artifacts/runs/m/k/half.bin", b"half")
    store = ArtifactStore(bucket, cache=tmp_path)
    assert store.find("m", "k") is None
    assert store.keys("m") == []
    store.verify(store.put("m", "k", tables={"metrics": FRAME}, lineage=LINEAGE))
    assert not fs.exists("artifacts/runs/m/k/half.bin")


def test_damage_in_s3_is_refused_by_name(bucket: str, tmp_path: Path) -> None:
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    store = ArtifactStore(bucket, cache=tmp_path / "cache")
    ref = store.put("m", "k", tables={"metrics": FRAME}, lineage=LINEAGE)
    path = "artifacts/runs/m/k/metrics.parquet"
    content = bytearray(fs.cat_file(path))
    content[100] ^= 1
    fs.pipe_file(path, bytes(content))
    with pytest.raises(ArtifactError, match=r"s3://.*/metrics.parquet was changed after"):
        ArtifactStore(bucket, cache=tmp_path / "other").table(ref, "metrics")
    fs.pipe_file(path, bytes(content[:50]))
    with pytest.raises(ArtifactError, match=r"s3://.*/metrics.parquet has 50 bytes where"):
        store.find("m", "k")
    fs.rm_file(path)
    with pytest.raises(ArtifactError, match=r"metrics.parquet is missing.*Delete s3://artifacts"):
        store.find("m", "k")


def test_a_damaged_local_copy_is_downloaded_again(bucket: str, tmp_path: Path) -> None:
    """The copies of a disk that flips bits must not cost the artifact in the bucket."""
    store = ArtifactStore(bucket, cache=tmp_path)
    ref = store.put("m", "k", tables={"metrics": FRAME}, lineage=LINEAGE)
    copy = store.directory(ref) / "metrics.parquet"
    whole = copy.read_bytes()
    copy.write_bytes(whole[:-1])
    lines: list[str] = []
    assert store.find_or_discard("m", "k", lines.append) == ref
    assert not lines
    assert copy.read_bytes() == whole
    copy.write_bytes(whole[:-1])
    assert store.table(ref, "metrics").equals(FRAME)


def test_damage_is_what_two_looks_at_the_bucket_agree_on(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    path = "artifacts/runs/m/k/metrics.parquet"
    lines: list[str] = []
    ref = ArtifactStore(bucket).put("m", "k", tables={"metrics": FRAME}, lineage=LINEAGE)
    content = fs.cat_file(path)
    flipped = bytes([content[0] ^ 1]) + content[1:]

    fetch = RemoteFiles.fetch
    arrivals: list[Any] = []

    def once_flipped(self: RemoteFiles, *arguments: Any) -> Path:
        arrivals.append(arguments)
        fs.pipe_file(path, flipped if len(arrivals) == 1 else content)
        return fetch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RemoteFiles, "fetch", once_flipped)
        store = ArtifactStore(bucket, cache=tmp_path / "one")
        assert store.find_or_discard("m", "k", lines.append) == ref
    assert len(arrivals) == 2
    assert not lines
    fs.pipe_file(path, flipped)
    store = ArtifactStore(bucket, cache=tmp_path / "two")
    assert store.find_or_discard("m", "k", lines.append) is None
    (line,) = lines
    assert "metrics.parquet was changed after" in line
    assert store.keys("m") == []


def test_a_bucket_that_does_not_answer_costs_nothing(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read timeout is no damage: the trained policy must still be there when the network is."""
    store = ArtifactStore(bucket, cache=tmp_path)
    lines: list[str] = []
    ref = store.put("m", "k", tables={"metrics": FRAME}, lineage=LINEAGE)

    def time_out(*arguments: Any, **options: Any) -> None:
        raise ReadTimeoutError(endpoint_url="http://bucket")

    filesystem, _ = fsspec.url_to_fs(bucket)  # the store's own: fsspec keeps one per place
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "get_file", time_out)
        with pytest.raises(ArtifactError, match="could not download s3://artifacts/runs/m/k"):
            store.find_or_discard("m", "k", lines.append)
    assert not lines
    assert store.find_or_discard("m", "k", lines.append) == ref


def test_a_missing_bucket_is_reported(bucket: str) -> None:
    store = ArtifactStore("s3://no-such-bucket/x")
    with pytest.raises(
        ArtifactError, match=r"could not list s3://no-such-bucket/x/m/k: .*bucket does not"
    ):
        store.put("m", "k", tables={"metrics": FRAME}, lineage=LINEAGE)


def test_a_dead_endpoint_is_reported(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    store = ArtifactStore("s3://artifacts/x")
    with pytest.raises(ArtifactError, match=r"could not read s3://artifacts/x/m/k: Endpoint"):
        store.find("m", "k")


def test_an_unknown_protocol_is_reported() -> None:
    with pytest.raises(UserError, match=r"artifact store 'nope://x' cannot be opened: Protocol"):
        ArtifactStore("nope://x")


def test_any_fsspec_filesystem_serves(tmp_path: Path, model: Path) -> None:
    store = ArtifactStore("memory://store", cache=tmp_path / "cache")
    ref = store.put("m", "a/k", tables={"metrics": FRAME}, directory=model, lineage=LINEAGE)
    assert store.keys("m") == ["a/k"]
    assert store.table(ref, "metrics").equals(FRAME)
    store.verify(ref)
    assert [m.kind for m in store.manifests()] == ["m"]
