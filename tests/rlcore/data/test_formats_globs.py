"""A pattern stands for the files there are now, in one order, wherever they lie."""

from pathlib import Path

import fsspec
import pytest

from flows.paths import RECIPES
from rlcore.data.formats import is_pattern, matched_files
from rlcore.data.read import peek, read_rows
from rlcore.data.sources import check_unchanged, data_digests, source_files
from rlcore.recipes.load import load_recipe
from schemas.data import DataSection, FileSource
from schemas.errors import UserError
from tests.rlcore.data.row_files import VERL_ROWS, read_source, write


def test_a_pattern_is_its_files_sorted(tmp_path: Path) -> None:
    for number, name in enumerate(("b.jsonl", "a.jsonl", "c.parquet")):
        write(tmp_path / name, VERL_ROWS[number : number + 1])
    (tmp_path / "folder.jsonl").mkdir()
    source = FileSource(path=str(tmp_path / "*.jsonl"))
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    assert matched_files(source.path, "x") == source_files(source) == files
    tables = read_source(source)
    assert [(table.source, table.rows) for table in tables] == [
        (files[0], VERL_ROWS[1:2]),
        (files[1], VERL_ROWS[:1]),
    ]
    assert [one.count for one in peek(source, "data.sources[0]")] == [1, 1]


def test_a_new_file_is_a_new_digest_and_a_renamed_one_is_none(tmp_path: Path) -> None:
    data = DataSection(sources=(FileSource(path=str(tmp_path / "*.jsonl")),))
    write(tmp_path / "a.jsonl", VERL_ROWS[:1])
    first = data_digests(data)
    assert list(first) == ["data.sources[0][0]"]
    (tmp_path / "a.jsonl").rename(tmp_path / "b.jsonl")
    assert data_digests(data) == first
    check_unchanged(data, {**first, "other": "digest"})
    write(tmp_path / "c.jsonl", VERL_ROWS[1:2])
    assert data_digests(data) == {
        **first,
        "data.sources[0][1]": data_digests(data)["data.sources[0][1]"],
    }
    with pytest.raises(UserError, match=r"data\.sources\[0\]\[1\] changed while it was read"):
        check_unchanged(data, first)


def test_a_url_may_be_a_pattern() -> None:
    for name in ("one", "two"):
        with fsspec.open(f"memory://globbed/{name}.jsonl", "wb") as file:
            file.write(name.encode())  # pyright: ignore[reportAttributeAccessIssue]
    files = matched_files("memory://globbed/*.jsonl", "x")
    assert [name.rpartition("/")[2] for name in files] == ["one.jsonl", "two.jsonl"]
    assert len(data_digests(DataSection(sources=(FileSource(path="memory://globbed/*"),)))) == 2
    with pytest.raises(UserError, match=r"path = 'memory://nowhere/\*' matches no file; put one"):
        matched_files("memory://nowhere/*", "data.sources[0].path")


def test_a_pattern_without_files_is_refused_before_a_run(tmp_path: Path) -> None:
    from rlcore.plan.data_size import check_files

    source = {"kind": "file", "path": str(tmp_path / "*.jsonl")}
    recipe = load_recipe("quickstart", {"data.sources": [source]}, directory=RECIPES)
    with pytest.raises(UserError) as refusal:
        check_files(recipe)
    assert str(refusal.value) == (
        f"data.sources[0].path = '{tmp_path}/*.jsonl' matches no file; put one there, or correct"
        " the pattern"
    )


def test_a_folder_is_its_shards(tmp_path: Path) -> None:
    """As Spark and the hub write a table: one part after the other, and marks beside them."""
    folder = tmp_path / "rows.parquet"
    folder.mkdir()
    for number in (1, 0):
        write(folder / f"train-0000{number}-of-00002.parquet", VERL_ROWS[number : number + 1])
    for beside in ("_SUCCESS", "_metadata.parquet", ".part.crc", "README.md", "dataset_info.json"):
        (folder / beside).write_text("x")
    source = FileSource(path=str(folder))
    assert [table.rows for table in read_source(source)] == [VERL_ROWS[:1], VERL_ROWS[1:2]]
    assert list(data_digests(DataSection(sources=(source,)))) == [
        "data.sources[0][0]",
        "data.sources[0][1]",
    ]
    with fsspec.open("memory://shards/part-0.jsonl.gz", "wb", compression="gzip") as file:
        file.write(b"{}")  # pyright: ignore[reportAttributeAccessIssue]
    assert [f.rpartition("/")[2] for f in matched_files("memory://shards/", "x")] == [
        "part-0.jsonl.gz"
    ]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("sums", "sums"),
        ("sums/train-*.jsonl", "train"),
        ("su*/*.jsonl", "rows"),
        ("sums/train-[0-9]*", "train"),
        ("sums/train-0.jsonl", "train-0.jsonl"),
    ],
)
def test_shards_are_of_one_data_source(path: str, name: str, tmp_path: Path) -> None:
    """Else each has metrics and a limit of prompts of its own."""
    (tmp_path / "sums").mkdir()
    for number in (0, 1):
        write(tmp_path / "sums" / f"train-{number}.jsonl", [{"prompt": "?"}])
    data = DataSection(sources=(FileSource(path=str(tmp_path / path)),))
    rows = read_rows(data, seed=0)
    assert {row.data_source for row in rows} == {name}
    assert {Path(row.source).name for row in rows} <= {"train-0.jsonl", "train-1.jsonl"}


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("train-0.parquet", "validation-0.parquet"), "several splits, train, valid and others"),
        (("rows.parquet", "rows_test.parquet"), "several splits, test and others"),
        (("a.parquet", "b.jsonl"), "several formats, .jsonl, .parquet"),
        (("data/train.parquet",), "rows in folders below it, such as .*/data"),
        (("config.json",), "it holds no file of .parquet"),
        ((), "it holds no file of .parquet"),
    ],
)
def test_a_folder_of_more_than_one_table_is_refused(
    names: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    """A test split that is read as training rows makes every figure of the run wrong."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, VERL_ROWS[:1])
    with pytest.raises(UserError, match=rf"^x = '.*' is a folder; give one of.*since .*{why}"):
        matched_files(str(tmp_path), "x")


def test_what_only_looks_like_a_pattern_is_none(tmp_path: Path) -> None:
    odd = write(tmp_path / "rows[1].jsonl", VERL_ROWS[:1])
    assert not is_pattern(str(odd))
    assert matched_files(str(odd), "x") == [str(odd)]
    assert not is_pattern("https://host/rows.jsonl?version=2")


def test_a_pattern_of_a_recipe_file_is_of_files_beside_it(tmp_path: Path) -> None:
    import yaml

    base = yaml.safe_load((RECIPES / "_quickstart.yaml").read_text())
    base["data"]["sources"] = [{"kind": "file", "path": "rows/*.jsonl"}]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(base))
    (source,) = load_recipe(str(tmp_path / "mine.yaml"), directory=RECIPES).data.sources
    assert isinstance(source, FileSource)
    assert source.path == str(tmp_path / "rows" / "*.jsonl")
