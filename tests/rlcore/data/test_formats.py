"""The format of a file by its name; reading each is proven in ``test_sources.py``."""

import io

import pytest

from rlcore.data.formats import count_in, format_of, rows_in


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
