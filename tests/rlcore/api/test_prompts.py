"""Prompts in every form a caller may hold them."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.prompts import prompts_frame
from rlcore.models.tokenizer import load_tokenizer
from rlcore.rewards.types import prompt_text
from schemas.errors import UserError
from schemas.tables import TABLES
from tests.rlcore.api.tiny import write_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    return load_tokenizer(Path(path))


def test_every_form_becomes_a_row_with_the_chat_template_applied(tokenizer: Any) -> None:
    frame = prompts_frame(
        [
            "What is 2 + 2?",
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            {"prompt": "3 + 3?", "ground_truth": 6, "data_source": "sums", "level": "easy"},
            {"messages": [{"role": "user", "content": "Bye"}]},
        ],
        tokenizer,
        max_tokens=None,
    )
    TABLES["prompts"].validate(frame)
    texts = [tokenizer.decode(ids) for ids in frame["prompt_ids"].to_list()]
    assert texts[0] == "<|user|>What is 2 + 2?<|assistant|>"
    assert texts[1] == "<|system|>Be brief.<|user|>Hi<|assistant|>"
    assert [prompt_text(p) for p in frame["prompt"].to_list()][:2] == [
        "What is 2 + 2?",
        "Be brief.\nHi",
    ]
    assert frame["ground_truth"].to_list() == [None, None, "6", None]
    sources = ["train_prompts", "train_prompts", "sums", "train_prompts"]
    assert frame["data_source"].to_list() == sources
    assert json.loads(frame["extra_info"][2]) == {"level": "easy"}
    assert set(frame["split"]) == {"train"}


def test_equal_prompts_stay_apart(tokenizer: Any) -> None:
    """One row per prompt given; a group is keyed by its uid."""
    frame = prompts_frame(["again", "again"], tokenizer, max_tokens=None)
    assert frame["uid"].n_unique() == 2


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        (["fine", "  "], r"train_prompts\[1\]: the user message is empty"),
        ([7], r"train_prompts\[0\] is int; give a text"),
        ([{"promt": "x"}], r"train_prompts\[0\] has the keys promt .*did you mean 'prompt'"),
        ([{"prompt": "x", "messages": []}], "needs one of prompt, messages"),
        ([[{"role": "assistant", "content": "x"}]], r"train_prompts\[0\]: roles assistant"),
        (["a <|user|> b"], "holds the token '<|user|>'"),
        (["What is 2 + 2? " * 9], "over max_prompt_length = 20"),
        ("one", "a single prompt"),
        ({"prompt": "one"}, "a single prompt"),
        ([], "is empty"),
    ],
)
def test_the_first_bad_prompt_is_named(tokenizer: Any, prompts: Any, sentence: str) -> None:
    sentence = sentence.replace("<|user|>", r"<\|user\|>")
    with pytest.raises(UserError, match=sentence):
        prompts_frame(prompts, tokenizer, max_tokens=20)
