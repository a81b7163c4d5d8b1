"""A model directory is found, or what it lacks is said."""

import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, GPT2Config, MptConfig

from rlcore.models.base import copy_base_model
from rlcore.models.files import (
    context_of,
    copy_model,
    local_directory,
    locate_model,
    model_directory,
    model_files,
)
from schemas.errors import UserError
from schemas.model import ModelSection
from tests.rlcore.models.scratch import copied


def test_a_path_is_a_directory_here_or_a_name_of_the_hub(tmp_path: Path) -> None:
    assert local_directory(str(tmp_path)) == tmp_path
    assert [local_directory(path) for path in ("owner/name", None)] == [None, None]


def test_a_snapshot_of_links_is_copied_as_files(base: Path, tmp_path: Path) -> None:
    """An artifact of dangling links would outlive the cache that it points into."""
    blobs, snapshot, target = (tmp_path / name for name in ("blobs", "snapshot", "target"))
    blobs.mkdir()
    snapshot.mkdir()
    for file in base.iterdir():
        (blobs / file.name).write_bytes(file.read_bytes())
        os.symlink(blobs / file.name, snapshot / file.name)
    (snapshot / "pytorch_model.bin").write_bytes(b"pickle")
    before = {file.name: file.read_bytes() for file in snapshot.iterdir()}
    copy_base_model(ModelSection(path=str(snapshot), max_tokens=64), snapshot, target)
    assert not [file for file in target.iterdir() if file.is_symlink()]
    assert {f.name for f in target.iterdir()} == {f.name for f in base.iterdir()}
    AutoModelForCausalLM.from_pretrained(target)
    template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    model = ModelSection(path=str(snapshot), max_tokens=64, chat_template=template)
    model = model.model_copy(update={"stop_tokens": ("0", "1")})
    copy_base_model(model, snapshot, tmp_path / "other")
    assert {file.name: file.read_bytes() for file in snapshot.iterdir()} == before


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (GPT2Config().to_dict(), 1024),
        (MptConfig().to_dict(), 2048),
        ({"max_position_embeddings": 512, "n_positions": 64}, 512),
        ({"text_config": {"max_position_embeddings": 256}}, 256),
        ({"text_config": None, "n_layer": 2}, None),
    ],
)
def test_the_context_is_found_under_each_classs_name(
    config: dict[str, Any], context: int | None
) -> None:
    assert context_of(config) == context


def test_model_directory_refuses_what_is_none(base: Path, tmp_path: Path) -> None:
    assert model_directory(base.parent) == base
    with pytest.raises(UserError, match=r"holds no model; give a base_model, policy or export"):
        model_directory(tmp_path)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer"])
def test_the_error_for_an_incomplete_model_names_what_it_lacks(
    base: Path, tmp_path: Path, missing: str
) -> None:
    source = copied(base, tmp_path / "source")
    for file in source.glob(f"{missing}*"):
        file.unlink()
    shown = {"model.safetensors": r"model\*\.safetensors"}
    with pytest.raises(UserError, match=rf"s no {shown.get(missing, missing)}.*save_pretrained"):
        copy_base_model(ModelSection(path=str(source), max_tokens=64), source, tmp_path / "target")


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/model", "a/b/c", "~/nowhere"])
def test_a_missing_path_is_not_taken_for_a_hub_name(path: str) -> None:
    with pytest.raises(UserError, match=r"is not a directory; give a local Hugging Face directory"):
        locate_model(path, None)


def test_pickled_weights_and_foreign_code_stay_behind(base: Path, tmp_path: Path) -> None:
    """Loading either runs what somebody else wrote."""
    source = copied(base, tmp_path / "source")
    for name in ("pytorch_model.bin", "optimizer.pt", "modeling_x.py", "notes.txt"):
        (source / name).write_bytes(b"x")
    copy_model(source, tmp_path / "target")
    assert {f.name for f in (tmp_path / "target").iterdir()} == {f.name for f in base.iterdir()}
    trusted = {file.name for file in model_files(source, trust_remote_code=True)}
    assert trusted - {f.name for f in base.iterdir()} == {"modeling_x.py"}


def test_a_model_outside_the_hub_is_found_where_it_lies(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(base.parent))
    assert locate_model("~/model", None) == locate_model(str(base), "any revision") == base


def test_a_model_that_the_cache_lacks_is_told_offline_with_its_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        UserError,
        match=r"'nobody/none' .* the hub's cache at revision 'c0ffee', and HF_HUB_OFFLINE is",
    ):
        locate_model("nobody/none", "c0ffee")
