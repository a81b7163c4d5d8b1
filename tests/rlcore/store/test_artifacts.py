"""The artifact store on a local directory: what is put comes back whole, or is refused by name."""

from pathlib import Path

import polars as pl
import pytest

from rlcore.store.artifacts import ArtifactStore, Lineage
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


def test_a_directory_may_not_use_the_stores_own_names(tmp_path: Path) -> None:
    source = model_folder(tmp_path / "model")
    (source / "tokenizer" / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"the name is reserved"):
        ArtifactStore(tmp_path / "s").put("policy", "k", directory=source, lineage=LINEAGE)
