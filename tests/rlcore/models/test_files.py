"""A model directory is found, or what it lacks is said."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from rlcore.models.base import build_base_model, copy_base_model
from rlcore.models.files import locate_model, model_directory
from schemas.errors import UserError
from schemas.recipe import FromScratch, ModelSection

TEXTS = [
    f"Tom has {n} pens and buys {n + 3}. How many now?\n{n}+{n + 3}\n#### {2 * n + 3}"
    for n in range(10, 99)
]


SCRATCH = ModelSection(
    from_scratch=FromScratch(
        hidden_size=32, num_layers=1, num_heads=1, num_kv_heads=1, vocab_size=300
    ),
    dtype="float32",
    max_tokens=64,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("artifact") / "model"
    return build_base_model(SCRATCH, target, texts=TEXTS, seed=0)


def copied(base: Path, target: Path, **edits: Any) -> Path:
    """A model directory whose tokenizer_config.json has ``edits``; None removes a key."""
    target.mkdir()
    for file in base.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    path = target / "tokenizer_config.json"
    config = json.loads(path.read_text()) | edits
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return target


def test_a_snapshot_of_links_is_copied_as_files(base: Path, tmp_path: Path) -> None:
    """An artifact of dangling links would outlive the cache that it points into."""
    blobs, snapshot, target = (tmp_path / name for name in ("blobs", "snapshot", "target"))
    blobs.mkdir()
    snapshot.mkdir()
    for file in base.iterdir():
        (blobs / file.name).write_bytes(file.read_bytes())
        os.symlink(blobs / file.name, snapshot / file.name)
    (snapshot / "pytorch_model.bin").write_bytes(b"pickle")
    copy_base_model(ModelSection(path=str(snapshot), max_tokens=64), snapshot, target)
    assert not [file for file in target.iterdir() if file.is_symlink()]
    assert {f.name for f in target.iterdir()} == {f.name for f in base.iterdir()}
    AutoModelForCausalLM.from_pretrained(target)


def test_model_directory_refuses_what_is_none(base: Path, tmp_path: Path) -> None:
    assert model_directory(base.parent) == base
    with pytest.raises(UserError, match=r"holds no model; give a base_model, policy or export"):
        model_directory(tmp_path)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer"])
def test_an_incomplete_model_is_told_what_it_lacks(
    base: Path, tmp_path: Path, missing: str
) -> None:
    source = copied(base, tmp_path / "source")
    for file in source.glob(f"{missing}*"):
        file.unlink()
    shown = {"model.safetensors": r"weights \(\*\.safetensors\)", "tokenizer": "a tokenizer"}
    with pytest.raises(UserError, match=rf"has no {shown.get(missing, missing)}.*save_pretrained"):
        copy_base_model(ModelSection(path=str(source), max_tokens=64), source, tmp_path / "target")


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/model", "a/b/c", "~/nowhere"])
def test_a_path_that_is_no_directory_is_not_taken_for_a_hub_name(path: str) -> None:
    with pytest.raises(UserError, match=r"is no directory; give a local Hugging Face directory or"):
        locate_model(path, None)
