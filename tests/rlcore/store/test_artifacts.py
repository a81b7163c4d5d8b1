"""The artifact store on a local directory: what is put comes back whole, or is refused by name."""

import os
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from rlcore.store import local
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError

LINEAGE = Lineage(recipe_digest="r" * 64, code_fingerprint="c" * 64)


def metrics(rows: int = 4, name: str = "actor/pg_loss") -> pl.DataFrame:
    return pl.DataFrame(
        {
            "stage": ["rl"] * rows,
            "step": list(range(rows)),
            "name": [name] * rows,
            "value": [0.5] * rows,
        },
        schema={"stage": pl.String, "step": pl.Int64, "name": pl.String, "value": pl.Float64},
    )


def model_folder(path: Path) -> Path:
    (path / "tokenizer").mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights" * 100)
    (path / "tokenizer" / "tokenizer.json").write_text("{}")
    return path


def test_tables_and_files_come_back_as_they_were_put(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "store"))
    ref = store.put(
        "policy",
        "abc/000007",
        tables={"metrics": metrics()},
        directory=model_folder(tmp_path / "model"),
        lineage=LINEAGE,
    )
    again = ArtifactStore(str(tmp_path / "store"))
    assert again.find("policy", "abc/000007") == ref
    assert again.table(ref, "metrics").equals(metrics())
    folder = again.directory(ref)
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 100
    assert (folder / "tokenizer" / "tokenizer.json").read_text() == "{}"
    assert ref.rows == {"metrics": 4}


def test_manifest_tells_the_lineage(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    parent = store.put("dataset", "d", tables={"metrics": metrics(1)}, lineage=LINEAGE)
    lineage = Lineage("r2", "c2", {"dataset": parent}, "flow-run-1", {"iteration": 7})
    manifest = store.manifest(
        store.put("rollouts", "k", tables={"metrics": metrics()}, lineage=lineage)
    )
    assert manifest.parents == {"dataset": parent}
    assert (manifest.recipe_digest, manifest.producer) == ("r2", "flow-run-1")
    assert manifest.metadata == {"iteration": 7}
    assert manifest.schema_versions == {"metrics": "metrics/v1"}


def test_equal_content_has_an_equal_digest(tmp_path: Path) -> None:
    """A digest that depends on how a frame was assembled makes every cache miss."""
    chunked = pl.concat([metrics(3), metrics(4).slice(3)], rechunk=False)
    assert chunked.n_chunks() == 2
    reordered = chunked.select("value", "name", "step", "stage")
    refs = [
        ArtifactStore(tmp_path / f"s{i}").put("m", "k", tables={"metrics": frame}, lineage=lineage)
        for i, (frame, lineage) in enumerate(
            [(metrics(4), LINEAGE), (reordered, Lineage("q" * 64, "other", producer="other run"))]
        )
    ]
    assert refs[0].sha256 == refs[1].sha256


def test_parquet_carries_kind_and_schema_and_plain_lists(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.put("curves", "k", tables={"metrics": metrics(20_000)}, lineage=LINEAGE)
    file = pq.ParquetFile(tmp_path / "curves" / "k" / "metrics.parquet")
    metadata = file.schema_arrow.metadata
    assert metadata[b"rlp.kind"] == b"curves"
    assert metadata[b"rlp.schema"] == b"metrics/v1"
    assert str(file.schema_arrow.field("name").type) == "string"
    assert file.metadata.num_row_groups == 3, "row groups must stay bounded for readers in pieces"
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_an_existing_artifact_is_returned_not_rewritten(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    first = store.put("m", "k", tables={"metrics": metrics(4)}, lineage=LINEAGE)
    second = store.put("m", "k", tables={"metrics": metrics(9)}, lineage=LINEAGE)
    assert second == first
    assert store.table(second, "metrics").height == 4


def test_keys_find_and_discard(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    for key in ("run/000001", "run/000002", "other"):
        store.put("rollouts", key, tables={"metrics": metrics()}, lineage=LINEAGE)
    assert store.keys("rollouts") == ["other", "run/000001", "run/000002"]
    assert store.keys("rollouts", "run/") == ["run/000001", "run/000002"]
    assert store.keys("rollouts", "run/000002") == ["run/000002"]
    assert store.keys("rewards") == []
    store.discard("rollouts", "run/000001")
    store.discard("rollouts", "never")
    assert store.keys("rollouts", "run/") == ["run/000002"]
    assert store.find("rollouts", "run/000001") is None
    store.put("rollouts", "run/000001", tables={"metrics": metrics()}, lineage=LINEAGE)
    assert [m.key for m in store.manifests()] == ["other", "run/000001", "run/000002"]


def test_an_empty_table_keeps_its_columns(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    ref = store.put("m", "k", tables={"metrics": metrics(0)}, lineage=LINEAGE)
    assert store.table(ref, "metrics").schema == metrics().schema


def test_links_in_a_directory_are_stored_as_their_content(tmp_path: Path) -> None:
    """Model folders of the hub's cache are links; the artifact must outlive the cache."""
    source = model_folder(tmp_path / "model")
    (source / "link.bin").symlink_to(source / "model.safetensors")
    store = ArtifactStore(tmp_path / "store")
    folder = store.directory(store.put("policy", "k", directory=source, lineage=LINEAGE))
    assert not (folder / "link.bin").is_symlink()
    assert (folder / "link.bin").read_bytes() == b"weights" * 100


BAD_PUTS = {
    "kind": ({"kind": "../x"}, "artifact kind '../x' must be lower-case letters"),
    "key parent": ({"key": "a/../b"}, "artifact key 'a/../b' must be parts of letters"),
    "key absolute": ({"key": "/etc"}, "artifact key '/etc' must be"),
    "key empty": ({"key": ""}, "artifact key '' must be"),
    "table name": (
        {"tables": {"metric": metrics()}},
        "table 'metric' has no contract.*did you mean 'metrics'",
    ),
    "lazy": (
        {"tables": {"metrics": metrics().lazy()}},
        "table 'metrics' must be a polars DataFrame, not LazyFrame",
    ),
    "no directory": ({"directory": Path("/nowhere")}, "/nowhere cannot be stored as .*not a dir"),
}


@pytest.mark.parametrize("case", BAD_PUTS)
def test_bad_arguments_are_refused_in_a_sentence(case: str, tmp_path: Path) -> None:
    change, sentence = BAD_PUTS[case]
    arguments = {"kind": "m", "key": "k", "tables": {}, "directory": None} | change
    with pytest.raises(UserError, match=sentence):
        ArtifactStore(tmp_path).put(
            arguments["kind"],
            arguments["key"],
            tables=arguments["tables"],
            directory=arguments["directory"],
            lineage=LINEAGE,
        )
    assert not list(tmp_path.rglob("manifest.json"))


def test_a_table_that_breaks_its_contract_is_refused_with_its_first_rows(tmp_path: Path) -> None:
    bad = metrics(6).with_columns(step=pl.Series([0, -1, 2, -3, -4, -5]))
    with pytest.raises(UserError) as caught:
        ArtifactStore(tmp_path).put("m", "k", tables={"metrics": bad}, lineage=LINEAGE)
    message = str(caught.value)
    assert "table 'metrics' breaks its contract metrics/v1" in message
    assert "column 'step', greater_than_or_equal_to(0): row 1: -1; row 3: -3" in message
    assert "and 1 more" in message
    assert not (tmp_path / "m").exists()


def test_missing_and_undeclared_columns_are_named(tmp_path: Path) -> None:
    bad = metrics().rename({"value": "valeu"}).with_columns(step=pl.col("step").cast(pl.Int32))
    with pytest.raises(UserError) as caught:
        ArtifactStore(tmp_path).put("m", "k", tables={"metrics": bad}, lineage=LINEAGE)
    for part in ("missing column: found value", "undeclared column: found valeu", "dtype('Int64')"):
        assert part in str(caught.value)


def test_a_directory_may_not_use_the_stores_own_names(tmp_path: Path) -> None:
    source = model_folder(tmp_path / "model")
    (source / "tokenizer" / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"the name is reserved"):
        ArtifactStore(tmp_path / "s").put("policy", "k", directory=source, lineage=LINEAGE)


def test_artifacts_do_not_nest(tmp_path: Path) -> None:
    """An artifact inside another would make the outer one look damaged."""
    store = ArtifactStore(tmp_path)
    store.put("m", "a/b", tables={"metrics": metrics()}, lineage=LINEAGE)
    with pytest.raises(ArtifactError, match=r"m/a would enclose the artifact m/a/b"):
        store.put("m", "a", tables={"metrics": metrics()}, lineage=LINEAGE)
    with pytest.raises(ArtifactError, match=r"m/a/b/c is inside the artifact m/a/b"):
        store.put("m", "a/b/c", tables={"metrics": metrics()}, lineage=LINEAGE)
    assert store.keys("m") == ["a/b"]


def test_a_table_that_an_artifact_lacks_is_named(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    ref = store.put("m", "k", tables={"metrics": metrics()}, lineage=LINEAGE)
    with pytest.raises(UserError, match=r"has no table 'metric'; it holds metrics; did you mean"):
        store.table(ref, "metric")


def test_a_ref_to_what_is_gone_or_replaced_is_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    ref = store.put("m", "k", tables={"metrics": metrics()}, lineage=LINEAGE)
    other = ArtifactRef(kind="m", key="k", uri=ref.uri, sha256="0" * 64)
    with pytest.raises(ArtifactError, match=r"000000000000... was requested: it has been written"):
        store.table(other, "metrics")
    store.discard("m", "k")
    with pytest.raises(ArtifactError, match=r"m/k is not in the store \(its manifest is missing\)"):
        store.manifest(ref)


def test_a_root_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ArtifactStore(tmp_path / "file")
    assert store.find("m", "k") is None
    with pytest.raises(ArtifactError, match=r"artifact store .*/file cannot be written"):
        store.put("m", "k", tables={"metrics": metrics()}, lineage=LINEAGE)


def test_leftovers_of_dead_writers_are_swept_and_living_ones_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArtifactStore(tmp_path)
    store.put("m", "k", tables={"metrics": metrics()}, lineage=LINEAGE)
    staging = tmp_path / ".staging"
    assert not list(staging.iterdir())
    host = os.uname().nodename
    dead, alive = staging / f"{host}-4194305-aa", staging / f"{host}-{os.getpid()}-bb"
    (dead / "sub").mkdir(parents=True)
    alive.mkdir()
    monkeypatch.setattr(local, "_STALE_S", -1)  # as if a stage had worked in it for a day
    store.put("m", "k2", tables={"metrics": metrics()}, lineage=LINEAGE)
    assert list(staging.iterdir()) == [alive]
    os.utime(alive, (1, 1))  # older than this process, which has got its maker's pid
    store.put("m", "k3", tables={"metrics": metrics()}, lineage=LINEAGE)
    assert not list(staging.iterdir())
