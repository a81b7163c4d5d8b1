"""A directory that is not the policy is never published."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.export.export import export_model
from rlcore.export.publish import ExportError, write_verified
from schemas.errors import UserError
from tests.rlcore.export.cards import card


def test_large_weights_are_sharded(policy_dir: Path, tmp_path: Path) -> None:
    proof = write_verified(policy_dir, tmp_path, dtype=None, shard_size="100KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 1
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert proof.logits_max_abs_diff <= 1e-4


@pytest.mark.parametrize(
    ("file", "damage", "sentence"),
    [
        ("model.safetensors", "weights", "weights of the reloaded model differ"),
        ("config.json", "rms_norm_eps", "configuration of the reloaded model differ"),
        ("generation_config.json", "eos", "generation_config of the reloaded model differ"),
        ("chat_template.jinja", "template", r"chat template \(sha256\) of the reloaded model"),
        ("tokenizer.json", "tokens", "of the reloaded model differ"),
    ],
)
def test_any_difference_publishes_nothing(
    policy_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    damage: str,
    sentence: str,
) -> None:
    """Saving is made to go wrong the way a library bug would; the old export must survive."""
    from rlcore.export import publish

    out = tmp_path / "out"
    export_model(policy_dir, out, dtype=None, card=card())
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    load = publish.load_policy

    def load_damaged(directory: Path, *args: Any) -> Any:
        if directory.name == ".out.partial":
            _damage(directory / file, damage)
        return load(directory, *args)

    monkeypatch.setattr(publish, "load_policy", load_damaged)
    with pytest.raises(ExportError, match=sentence) as error:
        export_model(policy_dir, out, dtype=None, card=card())
    assert "nothing was published" in str(error.value)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(("factor", "published"), [(1 + 2e-7, True), (1.01, False)])
def test_only_rounding_may_move_the_logits(
    policy_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    published: bool,
) -> None:
    """Equal weights at other addresses round differently on some CPUs. A buffer that no file holds
    moves the logits here, and neither weights nor configuration show it."""
    from rlcore.export import publish

    load = publish.load_policy

    def load_moved(directory: Path, *args: Any) -> Any:
        model = load(directory, *args)
        if directory == tmp_path:
            model.model.rotary_emb.inv_freq.mul_(factor)
        return model

    monkeypatch.setattr(publish, "load_policy", load_moved)
    if not published:
        with pytest.raises(ExportError, match="logits: max abs difference of the reloaded model"):
            write_verified(policy_dir, tmp_path, dtype=None)
        return
    assert 0.0 < write_verified(policy_dir, tmp_path, dtype=None).logits_max_abs_diff < 1e-4


def _damage(path: Path, kind: str) -> None:
    from safetensors.torch import load_file, save_file

    if kind == "weights":
        state = load_file(path)
        state["model.norm.weight"][0] += 1e-3
        save_file(state, path, metadata={"format": "pt"})
    elif kind == "template":
        path.write_text(path.read_text() + " ")
    else:
        data = json.loads(path.read_text())
        if kind == "rms_norm_eps":
            data["rms_norm_eps"] = 1e-3
        elif kind == "eos":
            data["eos_token_id"] = 5
        else:
            vocabulary = data["model"]["vocab"]
            vocabulary["7"], vocabulary["8"] = vocabulary["8"], vocabulary["7"]
        path.write_text(json.dumps(data))


def test_a_policy_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model in .*nothing cannot be loaded"):
        export_model(tmp_path / "nothing", tmp_path / "out", dtype=None, card=card())
    assert not (tmp_path / "out").exists()
