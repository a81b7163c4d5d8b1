"""The recipes on MATH, AIME and programming are planned from local files, without their models."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tests.rlcore.data.row_files import MATH_ROWS, write

SMALL = json.dumps(
    {
        "hidden_size": 64,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "intermediate_size": 128,
        "vocab_size": 512,
        "max_position_embeddings": 16384,
    }
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "math").mkdir()
    for split, times in (("train", 400), ("test", 10)):
        rows = [
            {**row, "problem": f"In {split}, {number}: {row['problem']}"}
            for number in range(times)
            for row in MATH_ROWS
        ]
        write(tmp_path / "math" / f"{split}.jsonl", rows)
    for name, what in (("aime", "cats"), ("aime25", "dogs")):
        rows = [{"Problem": f"How many of {n} {what}?", "Answer": 7} for n in range(30)]
        write(tmp_path / f"{name}.jsonl", rows)
    return tmp_path


def dry_run(name: str, data: Path, *overrides: str) -> int:
    given = ["model.path=null", f"model.from_scratch={SMALL}", f"store={data}/store", *overrides]
    return main(["run", name, "--dry-run", *(part for each in given for part in ("-o", each))])


def test_math_dapo(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [f"data.sources.0.path={data}/math", f"data.sources.1.path={data}/aime.jsonl"]
    assert dry_run("math-dapo", data, *paths) == 0
    said = capsys.readouterr().out
    assert "3,880 training prompts, 130 test prompts, 0 demonstrations" in said


def test_aime_vapo(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("aime", "aime25")
    paths = [f"data.sources.{i}.path={data}/{name}.jsonl" for i, name in enumerate(files, start=1)]
    assert dry_run("aime-vapo", data, f"data.sources.0.path={data}/math", *paths) == 0
    assert "30 test prompts, 0 demonstrations" in capsys.readouterr().out


def test_code_dapo(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In verl's form for prime_code, programs that read stdin beside functions that are called."""
    tests = [
        {"inputs": ["1 2\n"], "outputs": ["3\n"]},
        {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]},
    ]

    def rows(split: str) -> list[dict[str, Any]]:
        return [
            {
                "data_source": "taco",
                "prompt": [
                    {"role": "system", "content": "Write Python code in a block."},
                    {"role": "user", "content": f"Problem {index} of {split}: add two numbers."},
                ],
                "ability": "code",
                "reward_model": {"style": "rule", "ground_truth": json.dumps(tests[index % 2])},
                "extra_info": {"split": "dummy", "index": index},
            }
            for index in range(2000)
        ]

    files = [write(data / f"{split}.parquet", rows(split)) for split in ("train", "test")]
    paths = [f"data.sources.{index}.path={path}" for index, path in enumerate(files)]
    # Of all 200 iterations the store would exceed the disks of small machines.
    assert dry_run("code-dapo", data, *paths, "rl.iterations=10") == 0
    said = capsys.readouterr().out
    assert "1,980 training prompts, 2,000 test prompts, 0 demonstrations" in said


def test_code_dapo_names_the_file_that_is_to_be_made(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run("code-dapo", data) == 2
    assert "code/train.parquet' does not exist" in capsys.readouterr().err


def test_a_missing_file_of_math_is_named_before_the_run(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "math" / "test.jsonl").unlink()
    assert dry_run("math-dapo", data, f"data.sources.0.path={data}/math") == 2
    assert "holds 0 files test*" in capsys.readouterr().err
