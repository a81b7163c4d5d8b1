"""Base models: made from scratch or copied; every loader reads back what is on disk."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from rlcore.models.base import base_tokenizer, build_base_model, copy_base_model
from rlcore.models.files import read_json, write_json
from rlcore.models.tokenizer import load_tokenizer
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection
from tests.rlcore.models.scratch import SCRATCH, TEXTS, copied


def test_the_quickstart_shape_is_below_a_million_parameters_and_knows_its_end(
    tmp_path: Path,
) -> None:
    model = ModelSection(from_scratch=FromScratch(), dtype="float32", max_tokens=128)
    lm = AutoModelForCausalLM.from_pretrained(
        build_base_model(model, tmp_path, texts=TEXTS, seed=0)
    )
    tokenizer = load_tokenizer(tmp_path)
    assert lm.num_parameters() < 1_000_000
    assert lm.generation_config.eos_token_id == tokenizer.eos_token_id
    assert lm.generation_config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_equal_seeds_give_equal_files_and_others_other_weights(base: Path, tmp_path: Path) -> None:
    again = build_base_model(SCRATCH, tmp_path / "again", texts=TEXTS, seed=0)
    other = build_base_model(SCRATCH, tmp_path / "other", texts=TEXTS, seed=1)
    for file in base.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name
    weights = "model.safetensors"
    assert (other / weights).read_bytes() != (base / weights).read_bytes()


def test_a_chat_template_of_the_recipe_replaces_the_models(base: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m.content }}]{{ eos_token }}{% endfor %}"
    model = ModelSection(path=str(base), chat_template=template, max_tokens=64)
    tokenizer = load_tokenizer(copy_base_model(model, base, tmp_path / "m"))
    chat = [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "[x]" + str(tokenizer.eos_token)
    assert "[" not in str(load_tokenizer(base).apply_chat_template(chat, tokenize=False))


def test_the_tokenizer_alone_is_the_one_of_the_whole_model(base: Path, tmp_path: Path) -> None:
    """What a preview shows must be what a stage loads, which has config and weights beside it."""
    scratch, copied = tmp_path / "scratch", tmp_path / "copied"
    copied.mkdir()
    own = ModelSection(path=str(base), chat_template="{{ eos_token }}", max_tokens=64)
    pairs = [
        (base_tokenizer(SCRATCH, scratch, texts=TEXTS), load_tokenizer(base)),
        (
            base_tokenizer(own, copied, texts=()),
            load_tokenizer(copy_base_model(own, base, tmp_path / "whole")),
        ),
    ]
    for alone, whole in pairs:
        assert type(alone) is type(whole)
        assert alone.get_vocab() == whole.get_vocab()
        assert alone.chat_template == whole.chat_template
        assert alone.all_special_tokens == whole.all_special_tokens
        assert alone(TEXTS[0])["input_ids"] == whole(TEXTS[0])["input_ids"]
    assert not list(tmp_path.glob("[sc]*/*.safetensors"))


@pytest.mark.parametrize("name", ["max_position_embeddings", "n_positions"])
def test_a_context_shorter_than_max_tokens_is_refused(
    base: Path, tmp_path: Path, name: str
) -> None:
    source = copied(base, tmp_path / "source")
    config = read_json(source / "config.json")
    write_json(source / "config.json", config | {name: config.pop("max_position_embeddings")})
    with pytest.raises(
        UserError,
        match=r"model\.max_tokens = 2048 exceeds max_position_embeddings = 512 of model .*lower",
    ):
        copy_base_model(ModelSection(path=str(source)), source, tmp_path / "m")
