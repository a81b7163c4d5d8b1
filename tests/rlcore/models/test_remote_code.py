"""A model may bring Python files of its own; they run only where the recipe trusts them."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from rlcore.models.base import build_base_model
from rlcore.models.files import copy_model
from rlcore.models.tokenizer import load_tokenizer
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection

CODE = """
from pathlib import Path
from transformers import Qwen2Tokenizer

Path({marker!r}).touch()

class Mine(Qwen2Tokenizer):
    pass
"""


def test_code_of_a_model_runs_only_where_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    model, marker = tmp_path / "model", tmp_path / "ran"
    scratch = FromScratch(hidden_size=32, num_layers=1, num_heads=1, num_kv_heads=1, vocab_size=300)
    section = ModelSection(from_scratch=scratch, dtype="float32", max_tokens=64)
    build_base_model(section, model, texts=["What is 6 times 12?"] * 50, seed=0)
    (model / "mine.py").write_text(CODE.format(marker=str(marker)))
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config |= {"auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}}
    path.write_text(json.dumps({**config, "tokenizer_class": "Mine"}))

    copy_model(model, tmp_path / "careful")
    assert not (tmp_path / "careful" / "mine.py").exists()
    for directory in (model, tmp_path / "careful"):
        with suppress(UserError):  # transformers may find a tokenizer without that code
            load_tokenizer(directory)
    assert not marker.exists()

    copy_model(model, tmp_path / "trusting", trust_remote_code=True)
    load_tokenizer(tmp_path / "trusting", trust_remote_code=True)
    assert marker.exists()
