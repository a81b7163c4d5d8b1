"""Texts encoded by their pieces have the ids that the tokenizer gives: SFT and RL train these."""

import random
import string
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlcore.data.pieces import GPT2, LLAMA, MANY, QWEN, Pieces, encode_texts
from rlcore.models.tokenizer import train_tokenizer

WORDS = [
    "Tom",
    "has",
    "12",
    "eggs,",
    "don't",
    "I'LL",
    "(a+b)=7",
    "x_1",
    "naïve",
    "日本",
    "\r\n\n",
    "\t",
]
MARKS = ["<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>", "<|en", "|>"]


def plain(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def texts(seed: int = 0, count: int = MANY + 300) -> list[str]:
    """Words, marks, white space and control characters in any order."""
    draw = random.Random(seed)
    odd = [chr(code) for code in (*range(33), 127, 0x85, 0xA0, 0x17F, 0x212A)]
    parts = [*WORDS * 3, *MARKS, *odd, *string.printable, " ", "  ", "   "]
    return ["".join(draw.choices(parts, k=draw.randrange(1, 30))) for _ in range(count)]


def tokenizer_of(pattern: str, **options: Any) -> Any:
    """A tokenizer that cuts by ``pattern``, with the merges of another."""
    merges: Any = train_tokenizer([" ".join(WORDS) * 3], 340).backend_tokenizer
    backend: Any = Tokenizer.from_str(merges.to_str())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == GPT2)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.pre_tokenizer = (
        byte_level if pattern == GPT2 else pre_tokenizers.Sequence([split, byte_level])
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of texts of each call of ``Pieces.encode``."""
    calls: list[int] = []
    encode = Pieces.encode

    def counting(self: Pieces, tokenizer: Any, some: list[str]) -> list[list[int]]:
        calls.append(len(some))
        return encode(self, tokenizer, some)

    monkeypatch.setattr(Pieces, "encode", counting)
    return calls


@pytest.mark.parametrize("pattern", [QWEN, LLAMA, GPT2])
def test_ids_are_those_of_the_tokenizer(pattern: str, counted: list[int]) -> None:
    tokenizer = tokenizer_of(pattern)
    for seed in range(3):  # the second and third time most pieces are known
        some = texts(seed)
        assert encode_texts(tokenizer, some) == plain(tokenizer, some)
    assert len(counted) == 3, "the pattern was not recognised, and nothing was proven"


def test_the_tokenizer_of_our_models_is_one_of_those(counted: list[int]) -> None:
    tokenizer = train_tokenizer(["Tom has 12 eggs. 12+30=42"] * 10, 300)
    some = texts()
    assert encode_texts(tokenizer, some) == plain(tokenizer, some)
    assert counted


def test_an_added_token_counts_from_then_on() -> None:
    tokenizer: Any = train_tokenizer(["Tom has 12 eggs"] * 10, 300)
    some = [f"{text} eggs" for text in texts()]
    before = encode_texts(tokenizer, some)
    tokenizer.add_tokens([AddedToken(" eggs", normalized=False)])
    assert encode_texts(tokenizer, some) == plain(tokenizer, some) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.add_tokens([AddedToken("<call>", lstrip=True, normalized=False)]),
        lambda t: t.add_tokens([AddedToken("Tom", single_word=True, normalized=False)]),
        lambda t: setattr(t, "split_special_tokens", True),
        lambda t: setattr(t.backend_tokenizer, "pre_tokenizer", pre_tokenizers.Whitespace()),
        lambda t: setattr(t.backend_tokenizer, "model", models.BPE(dropout=1.0, unk_token=None)),
    ],
)
def test_a_tokenizer_that_cuts_otherwise_encodes_by_itself(change: Any, counted: list[int]) -> None:
    tokenizer = train_tokenizer([" ".join(WORDS)] * 10, 300)
    change(tokenizer)
    some = texts()
    assert encode_texts(tokenizer, some) == plain(tokenizer, some)
    assert not counted


def test_a_tokenizer_whose_code_does_not_what_its_file_says_is_found_out() -> None:
    """Wrong ids would be trained on, and nothing would say so."""
    tokenizer = train_tokenizer([" ".join(WORDS)] * 10, 300)
    pieces = Pieces(lambda text: [text[:3], text[3:]] if len(text) > 3 else [text])
    some = [f"{text} don't" for text in texts()]
    assert pieces.encode(tokenizer, some) == plain(tokenizer, some)
    assert pieces.encode(tokenizer, some[::-1]) == plain(tokenizer, some[::-1])


def test_few_pieces_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory must not grow with the rows."""
    monkeypatch.setattr("rlcore.data.pieces.HELD", 100)
    tokenizer = tokenizer_of(QWEN)
    for seed in range(3):
        some = [f"{text} {seed}x{n}y" for n, text in enumerate(texts(seed))]
        assert encode_texts(tokenizer, some) == plain(tokenizer, some)
