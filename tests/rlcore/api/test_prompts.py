"""Prompts in every form a caller may hold them."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.prompts import MATH_INSTRUCTION, MATH_REWARD, math_prompts, prompts_frame
from rlcore.models.tokenizer import load_tokenizer
from rlcore.rewards.registry import check_functions
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


def test_numbers_and_text_are_answers_and_the_instruction_is_appended() -> None:
    problems = [{"problem": "1 + 1?", "answer": 2}, {"problem": "x?", "answer": " 1/2 "}]
    assert math_prompts(problems, MATH_INSTRUCTION) == [
        {"prompt": f"1 + 1? {MATH_INSTRUCTION}", "ground_truth": "2"},
        {"prompt": f"x? {MATH_INSTRUCTION}", "ground_truth": "1/2"},
    ]
    assert math_prompts(problems, "")[0]["prompt"] == "1 + 1?"


def test_an_answer_of_zero_is_an_answer() -> None:
    assert math_prompts([{"problem": "1 - 1?", "answer": 0}], "")[0]["ground_truth"] == "0"


@pytest.mark.parametrize(
    ("problems", "sentence"),
    [
        ([], "math_problems is empty; give rows of 'problem' and 'answer'"),
        (None, "math_problems is empty"),
        ([{"problem": "a", "answer": "b"}, {"problem": "a"}], r"math_problems\[1\] has no answer;"),
        ([{"problem": "a", "answr": "b"}], r"\[0\] has no answer; did you mean 'answr'\?"),
        ([{"problem": " ", "answer": "b"}], r"\[0\] has no problem"),
        ([{"problem": "a", "answer": ""}], r"\[0\] has no answer"),
        (["a problem"], r"\[0\] has no problem; each row needs problem and answer"),
    ],
)
def test_a_problem_without_answer_is_refused(problems: Any, sentence: str) -> None:
    """An empty answer would fit any response."""
    with pytest.raises(UserError, match=sentence):
        math_prompts(problems, "")


def test_the_reward_of_problems_can_be_had() -> None:
    check_functions([(MATH_REWARD["name"], MATH_REWARD["weight"], {})])
