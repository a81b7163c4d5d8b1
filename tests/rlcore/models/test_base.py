"""Base models: made from scratch or copied; every loader reads back what is on disk."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlcore.models.base import build_base_model, copy_base_model
from rlcore.models.files import locate_model, model_directory
from rlcore.models.tokenizer import load_tokenizer, train_tokenizer
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


def test_a_chat_template_of_the_recipe_replaces_the_models(base: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m.content }}]{{ eos_token }}{% endfor %}"
    model = ModelSection(path=str(base), chat_template=template, max_tokens=64)
    tokenizer = load_tokenizer(copy_base_model(model, base, tmp_path / "m"))
    chat = [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "[x]" + str(tokenizer.eos_token)
    assert "[" not in str(load_tokenizer(base).apply_chat_template(chat, tokenize=False))


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
    shown = {"model.safetensors": r"weights \(\*\.safetensors\)", "tokenizer": "a tokenizer"}
    with pytest.raises(UserError, match=rf"has no {shown.get(missing, missing)}.*save_pretrained"):
        copy_base_model(ModelSection(path=str(source), max_tokens=64), source, tmp_path / "target")


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/model", "a/b/c", "~/nowhere"])
def test_a_missing_path_is_not_taken_for_a_hub_name(path: str) -> None:
    with pytest.raises(UserError, match=r"is not a directory; give a local Hugging Face directory"):
        locate_model(path, None)


def test_a_context_shorter_than_max_tokens_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"model\.max_tokens = 2048 exceeds max_position_embeddings = 512 of model .*lower",
    ):
        copy_base_model(ModelSection(path=str(base)), base, tmp_path / "m")


def test_a_vocabulary_below_the_bytes_is_refused() -> None:
    with pytest.raises(UserError, match=r"vocab_size = 100 is below 26\d \(256 bytes .*set it to"):
        train_tokenizer(TEXTS, 100)


def test_a_tokenizer_without_eos_is_refused(base: Path, tmp_path: Path) -> None:
    """Its model could never say that it has finished."""
    source = copied(base, tmp_path / "m", eos_token=None, tokenizer_class="PreTrainedTokenizerFast")
    config = json.loads((source / "config.json").read_text()) | {"model_type": "llama"}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"tokenizer of model 'mine' has no eos_token; set"):
        load_tokenizer(source, name="mine")


def test_a_tokenizer_without_chat_template_is_refused(base: Path, tmp_path: Path) -> None:
    source = copied(base, tmp_path / "m")
    (source / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match=r"'mine' has no chat template; set model\.chat_template"):
        load_tokenizer(source, name="mine")
