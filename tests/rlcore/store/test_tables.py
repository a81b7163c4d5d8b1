"""Tables on their way in and out: the contract first, and files that only content decides."""

import math
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.checks import ArtifactError, check_version
from rlcore.store.tables import decode_table, encode_table, validate, write_table
from schemas.errors import UserError
from schemas.table_list import MESSAGES
from schemas.tables import TABLES

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.parquet"


def read(path: Path, content: bytes) -> pl.DataFrame:
    path.write_bytes(content)
    return decode_table("metrics", path, "store/m/k")


def test_how_a_frame_was_put_together_leaves_no_trace(path: Path) -> None:
    """A digest that hung on chunks would make a resumed run another run."""
    whole = metrics(10)
    chunks = pl.concat([whole[:3], whole[3:]], rechunk=False)
    turned = chunks.select(reversed(whole.columns))
    contents = {encode_table("metrics", frame, "m") for frame in (whole, chunks, turned)}
    assert len(contents) == 1
    assert read(path, contents.pop()).equals(whole)


@pytest.mark.parametrize("rows", [0, 1, 8192, 70_000, 140_001])
def test_a_table_written_in_parts_has_the_bytes_of_the_whole(path: Path, rows: int) -> None:
    """Its digest is the dataset's identity, and must not hang on how it was made."""
    whole = metrics(rows)
    parts = (whole.slice(start, 9_000) for start in range(0, rows, 9_000))
    assert write_table("metrics", path, [whole.head(0), *parts], "m").rows == rows
    assert path.read_bytes() == encode_table("metrics", whole, "m")


def test_values_that_repeat_in_another_part_are_refused(tmp_path: Path) -> None:
    """Two rows of one uid would be taken for one another, from rewards to reports."""
    row = {
        "uid": "0",
        "split": "train",
        "data_source": "sums",
        "messages": [{"role": "user", "content": "a"}],
        "token_ids": [1],
        "loss_mask": [True],
    }
    types = {"messages": MESSAGES, "token_ids": pl.List(pl.Int32)}
    frame = pl.DataFrame([row], schema_overrides=types)
    many = pl.concat([frame] * 70_000).with_columns(uid=pl.int_range(70_000).cast(pl.String))
    with pytest.raises(UserError, match=r"'uid', values must be unique"):
        write_table("demonstrations", tmp_path / "t.parquet", [many, frame], "m")


def test_a_table_in_a_file_is_an_artifact_like_any_other(tmp_path: Path) -> None:
    store, frame = ArtifactStore(tmp_path / "store"), metrics(20_000)
    refs = []
    with store.scratch() as folder:
        file = write_table("metrics", folder / "metrics.parquet", [frame], "curves")
        refs.append(store.put("curves", "file", tables={"metrics": file}, lineage=LINEAGE))
    refs.append(store.put("curves", "frame", tables={"metrics": frame}, lineage=LINEAGE))
    assert refs[0].sha256 == refs[1].sha256
    assert store.table(refs[0], "metrics").equals(frame)


def test_an_empty_table_is_read_with_its_columns(path: Path) -> None:
    assert read(path, encode_table("metrics", metrics(0), "m")).schema == metrics().schema


def test_what_is_checked_is_a_table_that_is_there() -> None:
    """Of a LazyFrame pandera would check the types alone."""
    with pytest.raises(UserError, match=r"'metrics' must be a polars DataFrame, not LazyFrame"):
        validate("metrics", metrics().lazy())  # pyright: ignore[reportArgumentType]


def test_a_table_without_contract_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"table 'metrisc' has no contract .*mean 'metrics'\?"):
        encode_table("metrisc", metrics(), "m")


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ("metrics/v999", r"has schema metrics/v999, newer than metrics/v\d.*Update"),
        ("metrics/v0", r"has schema 'metrics/v0' where metrics/v\d+ is read\. Delete store/m/k"),
        ("prompts/v999", r"has schema 'prompts/v999' where metrics/v\d+ is read\. Delete"),
        ("", r"has schema 'none' where metrics/v\d+ is read\. Delete"),
    ],
)
def test_a_newer_table_asks_for_an_update_and_any_other_for_a_rerun(
    found: str, sentence: str
) -> None:
    with pytest.raises(ArtifactError, match=sentence):
        check_version("metrics", found, "store/m/k/metrics.parquet", "store/m/k")


def test_long_values_and_many_failures_stay_readable() -> None:
    bad = metrics(9).with_columns(step=pl.lit(-1, pl.Int64), stage=pl.lit("x" * 500))
    with pytest.raises(UserError) as error:
        validate("metrics", bad)
    assert "and 6 more" in str(error.value)
    assert max(map(len, str(error.value).splitlines())) < 400


def weights(count: int = 3) -> pl.DataFrame:
    names = [f"layer.{i}" for i in range(count)]
    types = {"tensor": pl.String, "digest": pl.String}
    return pl.DataFrame({"tensor": names, "digest": ["d"] * count}, schema=types)


def rollouts(**changes: Any) -> pl.DataFrame:
    """Two answers of two tokens to a prompt of one."""
    columns = {
        "trajectory_id": ["a", "b"],
        "uid": ["u", "u"],
        "sample": [0, 1],
        "iteration": [1, 1],
        "token_ids": [[5, 6, 7]] * 2,
        "prompt_tokens": [1, 1],
        "loss_mask": [[False, True, True]] * 2,
        "sampler_logprobs": [[0.0, -0.5, -0.25]] * 2,
        "response": ["x", "y"],
        "finish_reason": ["stop", "length"],
        "stop_reason": ["done", "length"],
        "turn_ends": [[3]] * 2,
        "turn_rewards": [[0.0]] * 2,
        "turn_versions": [[1]] * 2,
        "valid_actions": [[True]] * 2,
        "seed": [1, 2],
        "weight_version": [1, 1],
        "weight_digest": ["d", "d"],
    }
    return pl.DataFrame(columns | changes, schema=types_of("rollouts"))


def types_of(name: str) -> dict[str, pl.DataType]:
    columns = TABLES[name].columns
    return {column: spec.dtype.type for column, spec in columns.items()}


BROKEN = {
    "null": metrics().with_columns(name=pl.lit(None, pl.String)),
    "below": metrics().with_columns(step=pl.Series([0, 1, -1, 2])),
    "type": metrics().with_columns(step=pl.col("step").cast(pl.Int32)),
    "missing": metrics().drop("value"),
    "undeclared": metrics().with_columns(more=pl.lit(1)),
    "twice": weights().with_columns(tensor=pl.lit("layer.0")),
    "unknown word": rollouts(finish_reason=["stop", "tired"]),
    "same id": rollouts(trajectory_id=["a", "a"]),
    "no id": rollouts(trajectory_id=["a", None]),
    "uneven": rollouts(loss_mask=[[False, True, True], [False, True]]),
    "prompt trained on": rollouts(loss_mask=[[True, True, True]] * 2),
    "turn beyond the end": rollouts(turn_ends=[[3], [9]]),
    "positive": rollouts(sampler_logprobs=[[0.0, -0.5, 0.25]] * 2),
    "infinite": rollouts(sampler_logprobs=[[0.0, -math.inf, -0.5]] * 2),
    "without tokens": rollouts(token_ids=[[5, 6, 7], None]),
    "above": pl.DataFrame(
        {"low": [0.5], "high": [1.5], "num_pairs": [1], "claimed": [0.5], "observed": [0.5]}
    ),
    "not a number": pl.DataFrame(
        {"low": [math.nan], "high": [1.0], "num_pairs": [1], "claimed": [0.5], "observed": [0.5]}
    ),
}


NAMED_BY = {
    "metrics": "stage",
    "weights": "tensor",
    "calibration": "low",
    "rollouts": "token_ids",
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_contract_is_refused(fault: str) -> None:
    frame = BROKEN[fault]
    name = next(table for table, column in NAMED_BY.items() if column in frame.columns)
    with pytest.raises(UserError, match=f"table '{name}' breaks its contract"):
        validate(name, frame)


def test_a_kept_one_passes_in_any_order_of_columns_and_without_rows() -> None:
    scored = {"trajectory_id": ["a"], "advantages": [[0.5]]}  # no log-prob of a fused update yet
    advantages = pl.DataFrame(
        {name: scored.get(name, [None]) for name in types_of("advantages")},
        schema=types_of("advantages"),
    )
    filled = [
        *(("metrics", metrics()), ("weights", weights()), ("rollouts", rollouts())),
        ("advantages", advantages),
    ]
    empty = [(name, pl.DataFrame(schema=types_of(name))) for name in TABLES]
    for name, frame in [*filled, *empty]:
        validate(name, frame.select(reversed(frame.columns)))
