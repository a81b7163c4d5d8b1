"""Rows that a chat template would show in part only."""

from typing import Any

import pytest

from rlcore.data.filters import unshown_rejects
from rlcore.data.rows import Row
from rlcore.models.chat import Encoded, encode_demonstrations
from rlcore.models.tokenizer import train_tokenizer

USER = {"role": "user", "content": "2 + 3?"}
ANSWER = {"role": "assistant", "content": "#### 5"}
THOUGHT = {**ANSWER, "reasoning_content": "Two and three."}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
PLAIN = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant') %}<|{{ m.role }}|>{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# As Qwen3: earlier thoughts are dropped, which it does while sampling, too.
THINKING = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{% if m.NAME and loop.last %}<think>{{ m.NAME | trim }}"
    "</think>{% endif %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer_of(template: str) -> Any:
    tokenizer = train_tokenizer(["2 + 3?", "#### 5"], 300)
    tokenizer.chat_template = template
    return tokenizer


def row(*messages: dict[str, str], tools: Any = ()) -> Row:
    return Row(
        "rows", 0, "train", "train", "sums", list(messages[:-1]), [messages[-1]], tools=tools
    )


@pytest.mark.parametrize(
    ("one", "detail"),
    [
        (row(USER, THOUGHT), "does not show the reasoning_content of a message"),
        (row({"role": "system", "content": "Be brief."}, USER, ANSWER), "of role 'system'"),
        (row(USER, ANSWER, {"role": "tool", "content": "5"}, ANSWER), "of role 'tool'"),
        (row(USER, ANSWER, tools=[TOOL]), "does not show the tools of a row"),
    ],
)
def test_a_row_of_which_a_part_is_left_out_is_rejected(one: Row, detail: str) -> None:
    kept, (reject,) = unshown_rejects(tokenizer_of(PLAIN), [row(USER, ANSWER), one])
    assert [len(row.messages) for row in kept] == [2]
    assert reject.reason == "not_shown"
    assert detail in reject.detail
    assert unshown_rejects(tokenizer_of(THINKING.replace("NAME", "reasoning")), [one]) == (
        [one],
        [],
    )


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_learnt_under_the_name_that_the_template_reads(name: str) -> None:
    tokenizer = tokenizer_of(THINKING.replace("NAME", name))
    kept, rejects = unshown_rejects(tokenizer, [row(USER, THOUGHT, USER, THOUGHT)])
    assert len(kept) == 1
    assert not rejects, "what becomes of earlier thoughts is the template's to say"
    (encoded,) = encode_demonstrations(tokenizer, [[USER, THOUGHT]])
    assert isinstance(encoded, Encoded)
    pairs = zip(encoded.token_ids, encoded.loss_mask, strict=True)
    learnt = tokenizer.decode([token for token, is_learnt in pairs if is_learnt])
    assert learnt == f"<think>Two and three.</think>#### 5{tokenizer.eos_token}"


def test_a_template_that_refuses_a_chat_says_so_of_the_row() -> None:
    """The reason is that of the template, not that of the words in place of the contents."""
    template = PLAIN.replace("{% for m", "{{ raise_exception('no tools') if tools }}{% for m", 1)
    one = row(USER, ANSWER, tools=[TOOL])
    assert unshown_rejects(tokenizer_of(template), [one]) == ([one], [])
