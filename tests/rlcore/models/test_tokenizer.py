"""The tokenizer that is trained, and the checks on any that is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rlcore.models.base import build_base_model
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
