"""The tokenizer that is trained, and the checks on any that is loaded."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rlcore.models.tokenizer import (
    SPECIAL_TOKENS,
    load_tokenizer,
    read_tokenizer,
    train_tokenizer,
)
from schemas.errors import UserError
from schemas.model import FromScratch
from tests.rlcore.models.scratch import TEXTS, copied


def test_the_reloaded_tokenizer_is_the_trained_one(base: Path) -> None:
    """transformers loads a Qwen2 directory's tokenizer as its own class, which imposes its
    pre-tokenizer: another one would give the model other tokens than it was planned for."""
    trained = train_tokenizer(TEXTS, 300)
    texts = [*TEXTS[:5], "  two  spaces,\n\n tab\t don't 1,234.5 naïve 東京 🙂 #### 7", "<|user|>x"]
    for loaded in (load_tokenizer(base), AutoTokenizer.from_pretrained(base)):
        assert loaded(texts)["input_ids"] == trained(texts)["input_ids"]
        assert [loaded.decode(ids) for ids in loaded(texts)["input_ids"]] == texts
        assert len(loaded) == json.loads((base / "config.json").read_text())["vocab_size"]


def test_every_digit_is_a_token(base: Path) -> None:
    tokenizer = load_tokenizer(base)
    assert tokenizer.tokenize("2026") == ["2", "0", "2", "6"]


def test_the_template_spends_few_tokens_and_only_grows(base: Path) -> None:
    tokenizer = load_tokenizer(base)
    chat = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}] * 2

    def render(count: int, open_turn: bool) -> str:
        return str(
            tokenizer.apply_chat_template(
                chat[:count], tokenize=False, add_generation_prompt=open_turn
            )
        )

    assert render(4, False).startswith(render(3, True))
    assert render(3, True).startswith(render(2, False))
    assert render(2, False).endswith(str(tokenizer.eos_token))
    assert len(tokenizer(render(1, True))["input_ids"]) == 3


def test_a_vocabulary_below_the_bytes_is_refused() -> None:
    with pytest.raises(UserError, match=r"vocab_size = 100 is below 26\d \(256 bytes .*set it to"):
        train_tokenizer(TEXTS, 100)


def test_a_recipe_asks_for_no_vocabulary_that_cannot_be_trained() -> None:
    """What is refused is refused with the recipe, before a run has started."""
    least = 256 + len(SPECIAL_TOKENS)
    assert FromScratch(vocab_size=least).vocab_size == least
    with pytest.raises(ValueError, match=rf"greater than or equal to {least}"):
        FromScratch(vocab_size=least - 1)


@pytest.mark.parametrize("token", ["eos_token", "pad_token"])
def test_a_tokenizer_without_end_is_refused_and_one_without_padding_serves(
    base: Path, tmp_path: Path, token: str
) -> None:
    """A model without an end could never say that it has finished. Llama 3 and Mistral have no pad
    token, and no row is padded."""
    edits = {token: None, "tokenizer_class": "PreTrainedTokenizerFast"}
    source = copied(base, tmp_path / "m", **edits)
    config = json.loads((source / "config.json").read_text()) | {"model_type": "llama"}
    (source / "config.json").write_text(json.dumps(config))
    if token == "pad_token":
        assert load_tokenizer(source, name="mine").pad_token is None
        return
    with pytest.raises(UserError, match=rf"tokenizer of model 'mine' has no {token}; set"):
        load_tokenizer(source, name="mine")


def test_a_tokenizer_without_chat_template_is_refused(base: Path, tmp_path: Path) -> None:
    source = copied(base, tmp_path / "m")
    (source / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match=r"'mine' has no chat template; set model\.chat_template"):
        load_tokenizer(source, name="mine")


def test_files_of_mistral_common_beside_it_are_not_read(base: Path, tmp_path: Path) -> None:
    """As a download of Mistral's models has them; theirs would have no chat template."""
    directory = copied(base, tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "mistral"}))
    (directory / "tekken.json").write_text("{}")
    assert load_tokenizer(directory).chat_template == load_tokenizer(base).chat_template


def test_files_that_are_no_tokenizer_name_the_model_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer of model 'mine' cannot be loaded: ") as error:
        load_tokenizer(tmp_path, name="mine")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "[1]"),
        ("tokenizer.json", "not json"),
        ("tokenizer_config.json", "[]"),
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": 5}',
        ),
        ("tokenizer_config.json", '{"tokenizer_class": "Qwen2Tokenizer", "eos_token": 7}'),
    ],
)
def test_files_of_another_shape_name_the_model_too(
    base: Path, tmp_path: Path, file: str, content: str
) -> None:
    source = copied(base, tmp_path / "m")
    (source / file).write_text(content)
    with pytest.raises(UserError, match=r"'mine' cannot be loaded: .*; fetch or save it again"):
        load_tokenizer(source, name="mine")


def test_a_model_says_whether_it_brings_a_chat_template(base: Path, tmp_path: Path) -> None:
    source = copied(base, tmp_path / "m")
    assert read_tokenizer(source, "mine").chat_template
    (source / "chat_template.jinja").unlink()
    assert not read_tokenizer(source, "mine").chat_template


def test_equal_texts_train_an_equal_tokenizer_that_keeps_turn_marks_whole() -> None:
    """A mark in pieces would cost tokens in every turn, and could be sampled by accident."""
    one, other = (train_tokenizer(TEXTS, 300) for _ in range(2))
    assert one.get_vocab() == other.get_vocab()
    assert [len(one(token)["input_ids"]) for token in SPECIAL_TOKENS] == [1] * len(SPECIAL_TOKENS)
