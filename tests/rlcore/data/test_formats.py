"""The format of a file by its name; reading each is proven in ``test_sources.py``."""

import gzip
import io
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlcore.data import formats
from rlcore.data.formats import count_in, format_of, rows_in
from rlcore.data.sources import read_file
from schemas.errors import UserError


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("rows.parquet", (".parquet", None)),
        ("dir.gz/rows.v2.JSONL.GZ", (".jsonl", "gzip")),
        ("s3://bucket/rows.csv.xz", (".csv", "xz")),
        ("https://host/rows.jsonl?version=2.5", (".jsonl", None)),
        ("rows.parquet.gz", (".gz", None)),
        ("rows.gz", (".gz", None)),
        ("rows", ("", None)),
    ],
)
def test_the_ending_says_the_format(path: str, found: tuple[str, str | None]) -> None:
    assert format_of(path) == found


def test_rows_are_counted_as_they_are_read() -> None:
    for path, content in (
        ("r.csv", b'a,b\n"1\n2",x\n\n3,y\n'),
        ("r.jsonl", b'{"a": 1}\n\n{"a": 2}'),
        ("r.json", b'[{"a": 1}, {"a": 2}]'),
    ):
        assert len(list(rows_in(io.BytesIO(content), path))) == 2
        assert count_in(io.BytesIO(content), path) == 2


@pytest.mark.parametrize("typed", ["text", "dictionary"])
def test_a_parquet_file_that_unfolds_to_more_than_a_machine_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    """A dictionary and run lengths: 64 KiB once, and four thousand times."""
    monkeypatch.setattr(formats, "UNFOLDED", 64 << 20)
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 4096, pa.int32()), ["x" * (1 << 16)])
    if typed == "text":
        column = column.dictionary_decode()
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"prompt": column}), path)
    assert path.stat().st_size < 1 << 17
    with pytest.raises(UserError, match=r"s: .*bomb.parquet has [\d,]+ bytes and unfolds to more"):
        read_file(str(path), setting="s")
    assert len(read_file(str(path), 100, setting="s")) == 100


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json.gz", "rows.csv.xz"])
def test_text_that_unfolds_to_more_than_a_machine_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """All of it one line."""
    monkeypatch.setattr(formats, "UNFOLDED", 1 << 20)
    compress = gzip.compress if name.endswith(".gz") else lzma.compress
    (tmp_path / name).write_bytes(compress(b"a," + bytes([32]) * (32 << 20)))
    with pytest.raises(UserError, match=rf"{name} has [\d,]+ bytes and unfolds to more than"):
        read_file(str(tmp_path / name), setting="s")


def test_what_repeats_as_data_do_is_read(tmp_path: Path) -> None:
    """A long system prompt in each row."""
    row = b'{"prompt": "' + b"You are a careful assistant. " * 100 + b'"}\n'
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(row * 2000))
    assert len(read_file(str(tmp_path / "rows.jsonl.gz"), setting="s")) == 2000


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_rows_that_are_nested_deeper_than_python_reads_are_refused(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"is not JSON \(it is nested too deeply\)"):
        read_file(str(tmp_path / name), setting="s")
