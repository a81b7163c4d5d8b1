"""Sizes of a model are those of the model itself, found without loading it."""

import json
from pathlib import Path

import pytest

from rlcore.models.shape import find_shape, from_scratch_shape, model_parameters
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection
from tests.rlcore.plan.small import qwen2


@pytest.mark.parametrize(
    "scratch",
    [
        FromScratch(vocab_size=484),
        FromScratch(vocab_size=512, tie_word_embeddings=False),
        FromScratch(hidden_size=96, num_layers=3, num_heads=6, num_kv_heads=1, vocab_size=300),
    ],
)
def test_parameter_count_of_a_model_from_scratch_is_the_real_models(scratch: FromScratch) -> None:
    assert from_scratch_shape(scratch).parameters == qwen2(scratch).num_parameters()


def test_the_quickstart_model_has_the_parameters_that_its_document_says() -> None:
    assert from_scratch_shape(FromScratch(vocab_size=484)).parameters == 358_016


@pytest.mark.parametrize("tied", [True, False])
def test_a_local_model_is_counted_from_its_headers(tmp_path: Path, tied: bool) -> None:
    model = qwen2(FromScratch(tie_word_embeddings=tied, vocab_size=300))
    model.save_pretrained(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("model*.safetensors"))) > 1
    shape, note = find_shape(ModelSection(path=str(tmp_path)))
    assert shape is not None
    assert (shape.parameters, shape.exact, note) == (model.num_parameters(), True, "")
    assert (shape.num_kv_heads, shape.head_dim, shape.vocab_size) == (2, 32, 300)
    assert shape.kv_bytes_per_token(4) == 2 * 2 * 2 * 32 * 4


def test_a_missing_or_damaged_local_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.path = './nowhere' does not exist; give"):
        find_shape(ModelSection(path="./nowhere"))
    (tmp_path / "config.json").write_text('{"vocab_size": 4}')
    with pytest.raises(UserError, match="holds no model"):
        find_shape(ModelSection(path=str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(UserError, match="not a readable safetensors file"):
        find_shape(ModelSection(path=str(tmp_path)))


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere", "../x", "~/x", "a/b/c"])
def test_a_path_is_not_taken_for_a_hub_name(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of the hub, a typo would cost seconds and end in 'unknown'."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match=r"does not exist; give a Hugging Face model directory or"):
        find_shape(ModelSection(path=path))


def test_a_config_of_another_kind_of_model_names_what_it_lacks(tmp_path: Path) -> None:
    qwen2(FromScratch(vocab_size=300)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["intermediate_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"has no 'intermediate_size'; give a decoder-only text"):
        find_shape(ModelSection(path=str(tmp_path)))


def test_heads_that_a_config_leaves_out_follow_from_the_others(tmp_path: Path) -> None:
    """Llama 2 has neither key: taken for 0, its KV cache would cost nothing."""
    qwen2(FromScratch(vocab_size=300)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config = {k: v for k, v in config.items() if k not in ("num_key_value_heads", "head_dim")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape, _ = find_shape(ModelSection(path=str(tmp_path)))
    assert shape is not None
    heads = config["num_attention_heads"]
    assert (shape.num_kv_heads, shape.head_dim) == (heads, config["hidden_size"] // heads)


def test_other_names_of_the_same_sizes_are_known(tmp_path: Path) -> None:
    """The Python API trains GPT-2 and OPT too, and asks for their memory."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=300))
    model.save_pretrained(tmp_path)
    shape, _ = find_shape(ModelSection(path=str(tmp_path)))
    assert shape is not None
    assert shape.parameters == model.num_parameters()
    assert (shape.hidden_size, shape.num_layers, shape.intermediate_size) == (32, 2, 128)


@pytest.mark.parametrize("tied", [True, False])
def test_a_directory_is_counted_from_its_headers(tmp_path: Path, tied: bool) -> None:
    model = qwen2(FromScratch(tie_word_embeddings=tied, vocab_size=300))
    model.save_pretrained(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("model*.safetensors"))) > 1
    assert model_parameters(ModelSection(path="owner/name"), tmp_path) == model.num_parameters()


def test_a_model_from_scratch_counts_as_its_recipe_says(tmp_path: Path) -> None:
    """Before its tokenizer is trained, too, so that the dry run and the run agree."""
    scratch = FromScratch(vocab_size=512)
    model = ModelSection(from_scratch=scratch)
    assert model_parameters(model, tmp_path / "nothing") == qwen2(scratch).num_parameters()


@pytest.mark.parametrize("content", [b"", b"abc", b"\x10" + b"\0" * 7 + b"{", b"\xff" * 8 + b"{}"])
def test_a_damaged_weight_file_is_named_not_read_into_memory(
    tmp_path: Path, content: bytes
) -> None:
    """The first bytes say how long the header is: up to 16 EiB."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is not a readable safetensors file"):
        model_parameters(ModelSection(path="owner/name"), tmp_path)
