"""A directory that is not the policy is never published."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlcore.evaluation.export import export_model
from rlcore.evaluation.hf_directory import ExportError, write_verified
from schemas.errors import UserError
from tests.rlcore.evaluation.cards import card


def test_large_weights_are_sharded(
    policy_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore.evaluation.hf_directory.SHARD_SIZE", "100KB")
    proof = write_verified(policy_dir, tmp_path, dtype=None)
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
    from rlcore.evaluation import hf_directory

    out = tmp_path / "out"
    export_model(policy_dir, out, dtype=None, card=card())
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    load = hf_directory.load_policy

    def load_damaged(directory: Path, *args: Any) -> Any:
        if directory.name == ".out.partial":
            _damage(directory / file, damage)
        return load(directory, *args)

    monkeypatch.setattr(hf_directory, "load_policy", load_damaged)
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
    from rlcore.evaluation import hf_directory

    load = hf_directory.load_policy

    def load_moved(directory: Path, *args: Any) -> Any:
        model = load(directory, *args)
        if directory == tmp_path:
            model.model.rotary_emb.inv_freq.mul_(factor)
        return model

    monkeypatch.setattr(hf_directory, "load_policy", load_moved)
    if not published:
        with pytest.raises(ExportError, match="logits: max abs difference of the reloaded model"):
            write_verified(policy_dir, tmp_path, dtype=None)
        return
    assert 0.0 < write_verified(policy_dir, tmp_path, dtype=None).logits_max_abs_diff < 1e-4


SAMPLED = {"temperature": 0.9, "top_p": 0.6}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (SAMPLED, {**SAMPLED, "do_sample": True}),  # Llama-2-chat, Vicuna
        ({"do_sample": False, **SAMPLED}, {"do_sample": False}),
        ({"length_penalty": 0.8, "pad_token_id": -1}, {"length_penalty": 0.8, "pad_token_id": -1}),
        ({"eos_token_id": [1, 4], "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ],
)
def test_what_transformers_would_not_write_ends_no_export(
    policy_dir: Path, tmp_path: Path, given: dict[str, Any], written: dict[str, Any]
) -> None:
    """It raised a bare ValueError, after all training."""
    policy = tmp_path / "policy"
    shutil.copytree(policy_dir, policy)
    path = policy / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | given))
    record = export_model(policy, tmp_path / "out", dtype=None, card=card())
    found = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    expected = {"eos_token_id": given.get("eos_token_id", 1), "pad_token_id": 0} | written
    found.pop("transformers_version", None)
    assert {name: value for name, value in found.items() if name[0] != "_"} == expected
    assert len(record["stop_tokens"]) == (2 if "eos_token_id" in given else 1)


def test_a_template_that_demands_a_system_message_ends_no_export(
    policy_dir: Path, tmp_path: Path
) -> None:
    """The conversation by which exports are compared has none, and the run's rows all do."""
    policy = tmp_path / "policy"
    shutil.copytree(policy_dir, policy)
    template = (policy / "chat_template.jinja").read_text()
    demand = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
    (policy / "chat_template.jinja").write_text(demand + template)
    export_model(policy, tmp_path / "out", dtype=None, card=card())
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == demand + template


def test_an_export_lists_every_stop_token_and_its_card_names_them(
    policy_dir: Path, tmp_path: Path
) -> None:
    """Whoever serves it stops on what generation_config.json lists, and ran on to the limit."""
    policy = tmp_path / "policy"
    shutil.copytree(policy_dir, policy)
    template = "{% for m in messages %}{{ m.content }}<|system|>{% endfor %}"
    (policy / "chat_template.jinja").write_text(template)
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps({**config, "eos_token_id": [1, 3]}))
    export_model(policy, tmp_path / "out", dtype=None, card=card())
    found = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert found["eos_token_id"] == [1, 2, 3]
    text = (tmp_path / "out" / "README.md").read_text()
    assert "ends with one of the tokens" in text
    assert all(f"{name}" in text for name in ("end", "(1)", "system", "(2)", "user", "(3)"))


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
