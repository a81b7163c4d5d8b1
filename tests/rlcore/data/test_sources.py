"""Sources: what is read, and the sentence a person gets for what cannot be."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rlcore.data.normalise import normalise
from rlcore.data.read import peek
from rlcore.data.sources import count_rows, data_digests, read_file
from schemas.data import (
    AIME_HUBS,
    AimeSource,
    DataSection,
    FileSource,
    Gsm8kSource,
    HubSource,
    MathSource,
    ReadSource,
)
from schemas.errors import UserError
from tests.inputs import GSM8K, ROOT, reads
from tests.rlcore.data.row_files import MATH_ROWS, VERL_ROWS, read_source, write

needs_gsm8k = reads(GSM8K / "train.jsonl")


@needs_gsm8k
def test_the_real_gsm8k_is_read_whole_and_every_truth_is_an_integer() -> None:
    """A miscounted or misparsed GSM8K makes every reported accuracy wrong."""
    tables = read_source(Gsm8kSource(path=str(GSM8K)))
    counts = {}
    for table in tables:
        rows, rejects = normalise(table)
        assert not rejects
        assert all(str(int(row.ground_truth or "")) == row.ground_truth for row in rows)
        assert {row.data_source for row in rows} == {"openai/gsm8k"}
        info = json.loads(rows[-1].extra_info)
        assert set(info) == {"split", "index", "answer", "question"}
        assert rows[0].prompt[0]["content"].endswith('output the final answer after "####".')
        counts[table.split] = len(rows)
        demonstrations = [row for row in rows if row.solution]
        assert len(demonstrations) == (len(rows) if table.split == "train" else 0)
    assert counts == {"train": 7473, "test": 1319}


@needs_gsm8k
def test_gsm8k_dir_and_limit_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSM8K_DIR", str(GSM8K))
    assert [len(table.rows) for table in read_source(Gsm8kSource(limit=5))] == [5, 5]


@pytest.mark.parametrize(
    "suffix", [".parquet", ".jsonl", ".json", ".ndjson", ".jsonl.gz", ".JSONL.GZ", ".json.bz2"]
)
def test_one_form_reads_alike_from_every_format(tmp_path: Path, suffix: str) -> None:
    """Nested Parquet of several row groups is where readers of verl files break."""
    path = write(tmp_path / f"rows{suffix}", VERL_ROWS)
    (table,) = read_source(FileSource(path=str(path)))
    rows, rejects = normalise(table)
    assert not rejects
    assert [row.ground_truth for row in rows] == [str(2 * n) for n in range(3000)]
    assert len(read_file(str(path), 7, setting="x")) == 7


def test_a_spreadsheet_is_read_as_text(tmp_path: Path) -> None:
    """A guess at types made 7 of 007, and another answer of 1.50."""
    text = 'prompt,ground_truth,note\n"What is ""1"",\n + 1?",007,\n\nAnd 1.5?,1.50,é\n'
    for name, given in (("rows.csv", text), ("rows.tsv", text.replace(",", "\t"))):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + given.encode())
        (table,) = read_source(FileSource(path=str(tmp_path / name)))
        rows, rejects = normalise(table)
        assert not rejects
        assert [row.ground_truth for row in rows] == ["007", "1.50"]
        assert rows[0].prompt_text.startswith('What is "1"')
        assert [row.extra_info for row in rows] == ["{}", '{"note": "é"}']
        assert count_rows(str(tmp_path / name), setting="x") == 2


def test_a_variable_in_a_path_is_its_value_or_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "rows.jsonl", VERL_ROWS[:3])
    monkeypatch.setenv("ROWS_DIR", str(tmp_path))
    monkeypatch.delenv("ROWS", raising=False)
    for path in ("$ROWS_DIR/rows.jsonl", "${ROWS_DIR}/*.jsonl", "$ROWS_DIR"):
        source = FileSource(path=path)
        assert [table.rows for table in read_source(source)] == [VERL_ROWS[:3]]
        (digest,) = data_digests(DataSection(sources=(source,))).values()
        assert [file.url for file in digest.files()] == [str(tmp_path / "rows.jsonl")]
    with pytest.raises(UserError, match=r"names the environment variable ROWS, which is not set"):
        read_source(FileSource(path="$ROWS/rows.jsonl"))
    odd = write(tmp_path / "a$ROWS.jsonl", VERL_ROWS[:1])
    assert read_file(str(odd), setting="x") == VERL_ROWS[:1]


def test_a_url_is_read_like_a_path() -> None:
    with fsspec.open("memory://bucket/rows.jsonl", "wb") as file:
        file.write(json.dumps(VERL_ROWS[0]).encode())  # pyright: ignore[reportAttributeAccessIssue]
    (table,) = read_source(FileSource(path="memory://bucket/rows.jsonl"))
    assert table.rows == VERL_ROWS[:1]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("rows.txt", b"a,b", r"rows.txt' ends in '\.txt', and .* are read; give a file of"),
        ("rows.jsonl", b'{"a": 1}\n{"a": \n', r"rows\.jsonl line 2 is not JSON .*fix or remove"),
        ("rows.jsonl", b"[1, 2]\n", r"rows\.jsonl line 1 is not a JSON object; fix or remove"),
        ("rows.json", b'{"a": 1}', r"rows\.json holds a JSON dict, not an array of rows; write"),
        ("rows.json", b"[1]", r"rows\.json row 0 is not a JSON object"),
        ("rows.json", b"[", r"rows\.json is not JSON"),
        ("rows.json", b"{}\n{}", r"rows\.json is not JSON .*or rename it to \.jsonl if each line"),
        ("rows.csv", b"a,b\n1,2,3\n", r"rows\.csv line 2 has 3 fields and the first line 2; put"),
        ("rows.csv", b'a,b\n1,"2\n', r"rows\.csv line 2 is not CSV"),
        ("rows.csv", b"a;b\n1;2\n", r"rows\.csv has one column, .a;b.; separate columns"),
        ("rows.csv", b"a,b,a\n1,2,3\n", r"rows\.csv has the column 'a' twice; rename one"),
        ("rows.csv", "a,b\n\xe9,2\n".encode("latin-1"), r"rows\.csv is not UTF-8 .*save it as"),
        ("rows.jsonl.gz", b"\x1f\x8bno", r"rows\.jsonl\.gz' cannot be read"),
        ("rows.jsonl.zst", b"", r"rows\.jsonl\.zst' ends in '\.zst', and .* are read; give a file"),
        ("rows.parquet", b"PAR1 no", r"rows\.parquet is not a readable Parquet file .*write it"),
    ],
)
def test_an_unreadable_file_is_named_with_the_place_and_the_remedy(
    tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        read_source(FileSource(path=str(tmp_path / name)))


def test_rows_are_counted_without_reading_them_all_into_memory(tmp_path: Path) -> None:
    for suffix in (".parquet", ".jsonl", ".json", ".jsonl.xz"):
        path = write(tmp_path / f"rows{suffix}", VERL_ROWS)
        assert count_rows(str(path), setting="x") == len(VERL_ROWS)
    with fsspec.open("memory://bucket/rows.jsonl", "wb") as file:
        file.write(b"{}\n")  # pyright: ignore[reportAttributeAccessIssue]
    assert count_rows("memory://bucket/rows.jsonl", setting="x") is None


class _Refusing(MemoryFileSystem):
    """A storage whose library has errors of its own, as that of S3."""

    protocol = "refusing"

    def _open(self, *args: object, **kwargs: object) -> object:
        class NoCredentialsError(Exception):
            pass

        raise NoCredentialsError("Unable to locate\ncredentials")


def test_what_a_storage_refuses_is_one_sentence() -> None:
    """Without credentials a bucket ended the run in a traceback of a hundred lines."""
    fsspec.register_implementation("refusing", _Refusing, clobber=True)
    said = (
        r"^data\.sources\.path = 'refusing://x\.jsonl' cannot be read \(NoCredentialsError: Unable"
        r" to locate credentials\); give a file that this process can open$"
    )
    with pytest.raises(UserError, match=said):
        read_source(FileSource(path="refusing://x.jsonl"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"path = '.*none\.jsonl' does not exist; give an existing"):
        read_source(FileSource(path=str(tmp_path / "none.jsonl")))
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(UserError, match=r"data\.sources\[2\]\.path .*mean 'train\.jsonl'\?"):
        read_source(FileSource(path=str(tmp_path / "tran.jsonl")), "data.sources[2]")
    with pytest.raises(UserError, match=r"GSM8K file.* = '.*train\.jsonl' does not exist"):
        read_source(Gsm8kSource(path=str(tmp_path / "gsm8k")))


def test_math_is_read_from_a_folder_or_one_file(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00001.parquet", MATH_ROWS)
    write(tmp_path / "test.jsonl", MATH_ROWS[:3])
    tables = read_source(MathSource(path=str(tmp_path)))
    assert [(table.split, len(table.rows)) for table in tables] == [("train", 10), ("test", 3)]
    for table in tables:
        rows, rejects = normalise(table)
        assert not rejects
        assert {row.data_source for row in rows} == {"DigitalLearningGmbH/MATH-lighteval"}
        assert all(bool(row.solution) is (table.split == "train") for row in rows)
    (test,) = read_source(MathSource(path=str(tmp_path), split="test"))
    assert test.split == "test"
    (one,) = read_source(MathSource(path=str(tmp_path / "test.jsonl")))
    assert (one.split, len(one.rows)) == ("train", 3)


def test_levels_and_types_are_chosen_before_the_limit(tmp_path: Path) -> None:
    path = str(write(tmp_path / "train.jsonl", MATH_ROWS))

    def chosen(**fields: object) -> list[tuple[str, str]]:
        (table,) = read_source(MathSource.model_validate({"path": path, **fields}))
        return [(row["level"], row["type"]) for row in table.rows]

    assert len(chosen()) == 10
    assert chosen(levels=[4, 5]) == [("Level 4", "Geometry"), ("Level 5", "Algebra")] * 2
    assert chosen(levels=[5], types=["Algebra"], limit=1) == [("Level 5", "Algebra")]
    assert {kind for _, kind in chosen(types=["Geometry"])} == {"Geometry"}
    with pytest.raises(UserError, match=r"\['Precalculus'\] leave none of the 10 train rows"):
        chosen(types=["Precalculus"])


@pytest.mark.parametrize("names", [["train.jsonl"], ["train.jsonl", "train.parquet", "test.jsonl"]])
def test_a_folder_without_the_files_of_math_is_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        write(tmp_path / name, MATH_ROWS)
    with pytest.raises(UserError, match=r"sources\[1\]\.path = '.*' holds \d files t\w+\*"):
        read_source(MathSource(path=str(tmp_path)), "data.sources[1]")


def test_aime_is_read_whatever_the_case_of_its_columns(tmp_path: Path) -> None:
    first = write(tmp_path / "2024.parquet", [{"ID": "I-1", "Problem": "How many?", "Answer": 73}])
    second = write(tmp_path / "2025.jsonl", [{"problem": "How many?", "answer": "073", "id": "0"}])
    for path, year, truth in ((first, 2024, "73"), (second, 2025, "073")):
        source = AimeSource.model_validate({"path": str(path), "year": year})
        (table,) = read_source(source)
        ((row,), rejects) = normalise(table)
        assert not rejects
        assert (row.split, row.data_source, row.ground_truth) == ("test", f"aime{year}", truth)
        assert not row.solution


def test_math_and_aime_are_read_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder stands for the hub's dataset: what reads both is the same code."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for name in ("math", "aime"):
        (tmp_path / name).mkdir()
    write(tmp_path / "math" / "train.parquet", MATH_ROWS)
    write(tmp_path / "math" / "test.parquet", MATH_ROWS[:5])
    problems = [{"Problem": "How many?", "Answer": n} for n in (1, 2)]
    write(tmp_path / "aime" / "train.parquet", problems)
    math = MathSource(hub_name=str(tmp_path / "math"), levels=(5,))
    assert [len(table.rows) for table in read_source(math)] == [2, 1]
    monkeypatch.setitem(AIME_HUBS, 2024, (str(tmp_path / "aime"), "train"))
    (table,) = read_source(AimeSource(limit=1))
    assert [row["answer"] for row in table.rows] == [1]


SCRIPTED = """
import http.server, json, os, threading
class Hub(http.server.BaseHTTPRequestHandler):
    def answer(self):
        commit, path = "a" * 40, self.path.partition("?")[0]
        about = json.dumps({"id": "owner/made", "sha": commit}).encode()
        script = f"/datasets/owner/made/resolve/{commit}/made.py"
        found = {"/": b"", "/api/datasets/owner/made": about, script: b"import os"}
        body = found.get(path, b"")
        self.send_response(200 if path in found else 404)
        self.send_header("ETag", '"x"') or self.send_header("X-Repo-Commit", commit)
        if path not in found:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command == "GET" else b"")
    do_GET = do_HEAD = answer
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
from schemas.data import HubSource
from tests.rlcore.data.row_files import read_source
try:
    read_source(HubSource(name="owner/made"))
except ValueError as error:
    print(type(error).__name__, error)
"""


def test_a_hub_dataset_that_a_script_makes_is_refused_by_name(tmp_path: Path) -> None:
    """It ended in a RuntimeError."""
    env = os.environ | {"HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    env.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPTED], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.stdout.strip() == (
        "UserError hub dataset 'owner/made' (split 'train') cannot be loaded: it is made by a"
        " script, and datasets runs none; set its revision to 'refs/convert/parquet', where the hub"
        " keeps the rows of most such datasets, or use a source of kind 'file'"
    ), done.stderr


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (HubSource(name="owner/rows"), "owner/rows"),
        (Gsm8kSource(), "openai/gsm8k"),
        (AimeSource(), "Maxwell-Jia/AIME_2024"),
    ],
)
def test_a_folder_here_is_not_read_in_place_of_the_hub(
    source: ReadSource, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lineage said hub, and the rows were those of a folder that somebody had unpacked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GSM8K_DIR", raising=False)
    (tmp_path / name).mkdir(parents=True)
    write(tmp_path / name / "train.jsonl", VERL_ROWS[:3])
    for read in (read_source, peek):
        with pytest.raises(UserError, match=rf"dataset '{name}' cannot be read where a folder has"):
            read(source, "data.sources[0]")
    with pytest.raises(UserError, match=rf"^data\.sources\[0\].*'{name}' cannot be read"):
        data_digests(DataSection(sources=(source,)))


UNREACHABLE = """
from tests.rlcore.data.row_files import read_source
from rlcore.models.files import locate_model
from schemas.data import AimeSource, Gsm8kSource, HubSource, MathSource
for act in (
    lambda: read_source(Gsm8kSource()),
    lambda: read_source(HubSource(name="someone/rows")),
    lambda: locate_model("Qwen/Qwen2.5-0.5B-Instruct", None),
    lambda: read_source(MathSource()),
    lambda: read_source(AimeSource(year=2025)),
):
    try:
        act()
    except ValueError as error:
        print(type(error).__name__, error)
"""


def test_an_unreachable_hub_is_one_sentence_with_the_remedy_within_seconds(tmp_path: Path) -> None:
    """Retries of a minute, or a traceback of httpx, are what users of hub data get elsewhere."""
    env = os.environ | {
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    env.pop("GSM8K_DIR", None)
    env.pop("HF_HUB_OFFLINE", None)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", UNREACHABLE], env=env, capture_output=True, text=True, timeout=300
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 5, done.stderr
    gsm8k, dataset, model, math, aime = lines
    assert all(line.startswith("UserError") for line in lines)
    assert all("cannot be reached" in line for line in lines)
    assert "'openai/gsm8k'" in gsm8k
    assert "set data.sources.path (or GSM8K_DIR) to a directory of" in gsm8k
    assert "'DigitalLearningGmbH/MATH-lighteval'" in math
    assert "'math-ai/aime25'" in aime
    assert all("set data.sources.path to a file of its rows" in line for line in (math, aime))
    assert "'someone/rows'" in dataset
    assert "use a source of kind 'file'" in dataset
    assert "model.path = 'Qwen/Qwen2.5-0.5B-Instruct'" in model
    assert "set model.path to a local directory" in model
    assert time.monotonic() - start < 90, "imports take seconds on a busy machine; waiting must not"
