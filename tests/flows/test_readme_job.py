"""The README's own job: its recipe, its reward and its commands, word for word."""

import json
import re
from pathlib import Path

import pytest

from flows.cli import main
from rlcore.models.base import build_base_model
from schemas.model import ModelSection

README = Path(__file__).parents[2] / "README.md"


def block(after: str) -> str:
    """Return the first indented block of the README behind the line that holds ``after``."""
    text = README.read_text(encoding="utf-8").split(after, 1)[1]
    found = re.search(r"\n\n((?:    .*\n|\n)+)", text)
    assert found is not None, f"the README has no block after {after!r}"
    return "".join(line[4:] if line.strip() else line for line in found[1].splitlines(True))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """What a newcomer brings: a model directory and files of rows, in a folder of their own."""
    folder = tmp_path / "my-job"
    folder.mkdir()
    shape = {"vocab_size": 400, "hidden_size": 16, "num_layers": 1, "num_heads": 1}
    shape |= {"num_kv_heads": 1, "intermediate_size": 32, "max_position_embeddings": 256}
    model = ModelSection.model_validate({"from_scratch": shape, "dtype": "float32"})
    build_base_model(model, folder / "model", texts=["How much is 12 plus 34?"], seed=0)
    pairs = [(a, b) for a in range(20, 60) for b in range(a, 60)]
    for name, part in (("train", pairs[::2]), ("test", pairs[1::8])):
        rows = [{"question": f"How much is {a} plus {b}?", "answer": str(a + b)} for a, b in part]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert "rl-pipeline run my-job/sums.yaml --dry-run" in block("Then, after `make env`")
    (folder / "sums.yaml").write_text(block("A recipe, in any folder"))
    (folder / "rewards.py").write_text(block("Its reward, in a file beside it"))
    return folder


def test_it_is_planned_as_it_stands(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(job.parent)
    assert main(["run", "my-job/sums.yaml", "--dry-run"]) == 0, capsys.readouterr().err
    assert "Plan of recipe 'sums'" in capsys.readouterr().out
    assert main(["data", "my-job/sums.yaml", "-n", "1"]) == 0
    shown = capsys.readouterr().out
    assert "demonstration 1:" in shown
    assert "How much is " in shown
