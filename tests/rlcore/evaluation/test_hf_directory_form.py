"""An export reads where its base did: its files have the base's form, not the library's."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rlcore.evaluation.export import export_model
from rlcore.evaluation.hf_directory import needed_transformers
from rlcore.learner.model import write_hf_directory
from rlcore.models.base import copy_base_model
from rlcore.models.weight_files import read_checkpoint
from schemas.model import ModelSection
from tests.rlcore.evaluation.cards import card

# What transformers 4 writes, 4.43 here, and 5 would write otherwise.
CONFIG = {"rope_theta": 5e5, "rope_scaling": None, "torch_dtype": "bfloat16"}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "additional_special_tokens": ["<|user|>", "<|assistant|>"],
    "eos_token": "<|end|>",
    "pad_token": "<|endoftext|>",
    "clean_up_tokenization_spaces": True,
    "model_max_length": 1000000000000000019884624838656,
}
MAP = {"eos_token": {"content": "<|end|>", "special": True}, "pad_token": "<|endoftext|>"}


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def base(policy_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama as transformers 4.43 wrote it, its chat template in the tokenizer's configuration."""
    directory = tmp_path_factory.mktemp("base") / "model"
    tokenizer = AutoTokenizer.from_pretrained(policy_dir)
    shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(
        **shape,
        intermediate_size=32,
        vocab_size=len(tokenizer),
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).bfloat16().save_pretrained(directory)
    shutil.copyfile(policy_dir / "tokenizer.json", directory / "tokenizer.json")
    written = read(directory / "config.json")
    for key in ("dtype", "rope_parameters"):
        written.pop(key)
    generation = {**read(directory / "generation_config.json"), "transformers_version": "4.43.1"}
    for name, content in {
        "config.json": {**written, **CONFIG, "transformers_version": "4.43.1"},
        "generation_config.json": generation,
        "tokenizer_config.json": {**TOKENIZER, "chat_template": tokenizer.chat_template},
        "special_tokens_map.json": MAP,
    }.items():
        (directory / name).write_text(json.dumps(content))
    return directory


def trained(base: Path, folder: Path, dtype: str) -> Path:
    """The policy directory that a learner writes for ``base`` after an update."""
    section = ModelSection(path=str(base), max_tokens=64)
    copied = copy_base_model(section, base, folder / "base")
    state = {name: tensor.float() * 1.5 for name, tensor in read_checkpoint(copied).items()}
    state = {name: tensor.to(getattr(torch, dtype)) for name, tensor in state.items()}
    written = folder / "policy"
    write_hf_directory(written, source=copied, state=state, dtype=dtype, architecture="")
    return written


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_base_of_release_4_is_exported_as_it_was_written(
    base: Path, tmp_path: Path, dtype: str
) -> None:
    """Release 4.57 could not read the tokenizer, and turned positions by another angle without a
    word: it knows ``rope_theta`` alone."""
    out = tmp_path / "out"
    record = export_model(trained(base, tmp_path, dtype), out, dtype=None, card=card())
    assert read(out / "config.json") == {**read(base / "config.json"), "torch_dtype": dtype}
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (out / name).read_bytes() == (base / name).read_bytes(), name
    generation = "generation_config.json"
    assert read(out / generation) == read(base / generation)
    assert not (out / "chat_template.jinja").exists()
    assert record["transformers"] == "4.57"
    assert "Needs transformers 4.57 or newer." in (out / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(out)
    assert str(model.dtype) == f"torch.{dtype}"
    assert model.config.rope_parameters["rope_theta"] == 5e5


def test_a_base_of_release_5_stays_one_and_the_card_says_so(base: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(newer)
    AutoTokenizer.from_pretrained(base).save_pretrained(newer)
    out = tmp_path / "out"
    record = export_model(trained(newer, tmp_path, "float32"), out, dtype=None, card=card())
    assert read(out / "tokenizer_config.json") == read(newer / "tokenizer_config.json")
    assert "rope_parameters" in read(out / "config.json")
    wrote = read(newer / "config.json")["transformers_version"]
    assert record["transformers"] == ".".join(wrote.split(".")[:2])
    assert (
        f"Needs transformers {record['transformers']} or newer." in (out / "README.md").read_text()
    )


def test_a_model_from_scratch_is_in_the_form_of_release_4(policy_dir: Path, tmp_path: Path) -> None:
    """Ours are trained in the quickstart, and people read them with what they have."""
    export_model(policy_dir, tmp_path / "out", dtype="bfloat16", card=card())
    tokenizer = read(tmp_path / "out" / "tokenizer_config.json")
    assert tokenizer == read(policy_dir / "tokenizer_config.json")
    assert tokenizer["additional_special_tokens"] == ["<|system|>", "<|user|>", "<|assistant|>"]
    assert not tokenizer.keys() & {"extra_special_tokens", "backend", "is_local"}
    config = read(tmp_path / "out" / "config.json")
    assert config == {**read(policy_dir / "config.json"), "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("config", "tokenizer", "needed"),
    [
        ({}, {}, "4.57"),
        ({"transformers_version": "4.40.0.dev0"}, {}, "4.57"),
        ({"transformers_version": "4.58.1"}, {}, "4.58"),
        ({"transformers_version": "5.2.0"}, {}, "5.2"),
        ({}, {"tokenizer_class": "TokenizersBackend"}, "5.0"),
        ({}, {"extra_special_tokens": ["<a>"]}, "5.0"),
        ({}, {"extra_special_tokens": {"image_token": "<a>"}}, "4.57"),
        ({"rope_parameters": {"rope_theta": 1e6}}, {}, "5.0"),
        ({"text_config": {"rope_parameters": {}}}, {}, "5.0"),
        ({"rope_parameters": {}, "rope_theta": 1e4}, {}, "4.57"),
    ],
)
def test_the_needed_release_follows_from_the_files(
    tmp_path: Path, config: dict[str, Any], tokenizer: dict[str, Any], needed: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert needed_transformers(tmp_path) == needed
