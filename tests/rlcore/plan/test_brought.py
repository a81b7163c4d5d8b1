"""Data that people bring and that cannot be read as it was meant: the dry run says so by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tests.rlcore.data.row_files import write

VERL = {"prompt": "What is 1 + 1?", "data_source": "sums", "reward_model": {"ground_truth": "2"}}
TRL = {"prompt": "What is 1 + 1?", "completion": "2", "ground_truth": "2"}
Overrides = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("brought")
    for split in ("train", "test"):
        (folder / "splits").mkdir(exist_ok=True)
        write(folder / "splits" / f"{split}-00000-of-00001.parquet", [TRL])
    (folder / "rows.xlsx").write_bytes(b"PK")
    answer = {"role": "assistant", "content": "2"}
    for name, turn in (("masked", {"weight": 0}), ("thinking", {"reasoning": "One and one."})):
        rows = [{"messages": [{"role": "user", "content": "1 + 1?"}, {**answer, **turn}]}] * 3
        write(folder / f"{name}.jsonl", rows)
    (folder / "cut.csv").write_text("prompt,solution\n\"[{'role': 'user', 'content': 'Wh\",2\n")
    write(folder / "halves.jsonl", [{"text": "a"}, {"text": "a\ud83d"}])
    write(folder / "half.jsonl", [{**VERL, "prompt": "What is \ud83d?"}])
    return folder


def sources(file: str) -> Overrides:
    """A recipe with this training file, and generated rows for the other splits."""
    return {"data.sources": [{"kind": "file", "path": f"FOLDER/{file}"}, {"kind": "arithmetic"}]}


CASES: dict[str, tuple[Overrides, str]] = {
    "no format of rows": (sources("rows.xlsx"), "ends in '.xlsx', and .parquet, .jsonl, .ndjson,"),
    "a variable that is not set": (
        {"data.sources": [{"kind": "file", "path": "$NO_SUCH_DIR/rows.jsonl"}]},
        "data.sources[0].path = '$NO_SUCH_DIR/rows.jsonl' names the environment variable"
        " NO_SUCH_DIR, which is not set here; set it, or write the path",
    ),
    "a variable in the model's path": (
        {"model.from_scratch": None, "model.path": "${MODELS}/tiny"},
        "model.path = '${MODELS}/tiny' names an environment variable, and is read as it is; write",
    ),
    "a text of half a character": (
        {"rl.ptx": {"path": "FOLDER/halves.jsonl"}},
        "rl.ptx.path = 'FOLDER/halves.jsonl' row 1 holds half of a character (such as \\ud83d)",
    ),
    "a folder of several splits": (
        sources("splits"),
        "data.sources[0].path = 'FOLDER/splits' is a folder; give one of its files, or a pattern"
        " such as FOLDER/splits/train-*.parquet, since it holds files of several splits, test,"
        " train and others",
    ),
    "a path as a name of the hub": (
        {"data.sources": [{"kind": "hub", "name": "./splits"}]},
        "'./splits' is no name of the hub, as owner/name; your own files and folders are read",
    ),
    "a turn that must not be trained": (
        sources("masked.jsonl"),
        "3 for 'untrained_turn', as row 0: a turn of the assistant has weight 0, and all of them",
    ),
    "a conversation cut off": (
        sources("cut.csv"),
        "1 for 'conversation_as_text', as row 0: prompt begins as a list of messages written as",
    ),
    "half of a character": (
        sources("half.jsonl"),
        "1 for 'not_unicode', as row 0: the row holds '\\ud83d', half of a character",
    ),
    "reasoning that the template does not show": (
        sources("thinking.jsonl"),
        "3 for 'not_shown', as row 0: the chat template does not show the reasoning_content of a"
        " message; set model.chat_template to one that shows it",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_read_as_it_was_meant_is_refused(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was trained as something else, or ended in a traceback."""
    monkeypatch.delenv("NO_SUCH_DIR", raising=False)
    overrides, said = CASES[case]
    given = {"data.deduplicate": "exact", "tracking.wandb": False, **overrides}
    pairs = json.loads(json.dumps(given).replace("FOLDER", str(folder))).items()
    arguments = [part for key, value in pairs for part in ("-o", f"{key}={json.dumps(value)}")]
    assert main(["run", "quickstart", "--dry-run", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert said.replace("FOLDER", str(folder)) in error
