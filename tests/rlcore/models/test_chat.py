"""Prompts and demonstrations become the tokens that are sampled from and trained on."""

import pytest

from rlcore.models.chat import Encoded, Refused, encode_demonstrations, encode_prompts
from rlcore.models.tokenizer import EOS, train_tokenizer
from schemas.errors import UserError

CHATML = (
    "{% for m in messages %}<|user|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|user|>assistant\n{% endif %}"
)
# As Qwen3 does with the thoughts of earlier turns: only the last answer keeps its mark.
FORGETFUL = (
    "{% for m in messages %}<|user|>{{ m.content }}{% if loop.last %} (last){% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["Tom has 12 eggs and gets 30. How many now?", "12+30:02,4=42\n#### 42"] * 20
    return train_tokenizer(texts, 320)


@pytest.fixture
def templated(tokenizer):
    own = tokenizer.chat_template

    def use(template):
        tokenizer.chat_template = template
        return tokenizer

    yield use
    tokenizer.chat_template = own


def _chat(*contents: str) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(contents)
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


def _trained(tokenizer, encoded: Encoded | Refused) -> list[str]:
    """Return the runs of text that carry loss."""
    assert isinstance(encoded, Encoded)
    runs, run = [], []
    for token, is_loss in [*zip(encoded.token_ids, encoded.loss_mask, strict=True), (0, False)]:
        if is_loss:
            run.append(token)
        elif run:
            runs.append(tokenizer.decode(run))
            run = []
    return runs


@pytest.mark.parametrize("template", [None, CHATML])
def test_loss_falls_on_every_assistant_turn_and_its_eos(tokenizer, templated, template) -> None:
    """Loss on the prompt teaches the model to ask; none on EOS teaches it never to stop."""
    tokenizer = templated(template or tokenizer.chat_template)
    chat = _chat("Tom has 12", "12+30", "and now?", "#### 42")
    encoded = encode_demonstrations(tokenizer, [chat])[0]
    assert _trained(tokenizer, encoded) == [f"12+30{EOS}", f"#### 42{EOS}"]
    assert isinstance(encoded, Encoded)
    assert encoded.token_ids[-1] == tokenizer.eos_token_id


def test_only_the_last_turn_need_be_told_apart_of_a_preference(tokenizer, templated) -> None:
    """Qwen3 would refuse every pair of several turns."""
    marked = FORGETFUL.replace("loop.last", "loop.last and m.role == 'assistant'")
    tokenizer = templated(marked.replace("<|user|>{{", "{{ '<|' ~ m.role ~ '|>' }}{{"))
    chat = _chat("Tom has 12", "12+30", "and now?", "#### 42")
    assert isinstance(encode_demonstrations(tokenizer, [chat])[0], Refused)
    (encoded,) = encode_demonstrations(tokenizer, [chat], last_only=True)
    assert _trained(tokenizer, encoded) == ["#### 42 (last)<|end|>"]


def test_a_demonstration_starts_with_the_prompt_that_rollouts_see(tokenizer) -> None:
    """Otherwise SFT and sampling work on different texts."""
    chat = _chat("Tom has 12 eggs.", "\n12")
    (prompt,) = encode_prompts(tokenizer, [chat[:1]])
    (whole,) = encode_demonstrations(tokenizer, [chat])
    assert isinstance(whole, Encoded)
    assert isinstance(prompt, list)
    assert whole.token_ids[: len(prompt)] == prompt
    assert whole.loss_mask == [False] * len(prompt) + [True] * (len(whole.token_ids) - len(prompt))


def test_a_template_that_rewrites_history_is_refused_not_masked_wrongly(templated) -> None:
    tokenizer = templated(FORGETFUL)
    long = encode_demonstrations(tokenizer, [_chat("a", "b", "c", "d")])[0]
    assert isinstance(long, Refused)
    assert long.reason == "template_rewrites_history"
    assert "set model.chat_template" in long.detail
    asked = encode_demonstrations(tokenizer, [_chat("a", "b")])[0]  # rewritten: the question
    assert isinstance(asked, Refused)
    assert asked.reason == "template_rewrites_history"


OPENS_THINK = CHATML.replace("assistant\n", "assistant\n<think>\n")
# As DeepSeek-R1 does: the thoughts of every written turn are left out.
STRIPS_THINK = OPENS_THINK.replace("m.content", "m.content.split('</think>')[-1]")


@pytest.mark.parametrize(
    ("template", "answer", "shown"),
    [
        (OPENS_THINK, "#### 42", "#### 42<|end|>"),
        (OPENS_THINK, "<think>12+30</think>#### 42", "<think>12+30</think>"),  # no line break
        (STRIPS_THINK, "<think>\n12+30</think>#### 42", "#### 42<|end|>"),
    ],
)
def test_a_template_that_opens_a_turn_otherwise_is_named_as_that(
    templated, template, answer, shown
) -> None:
    """It was said to rewrite history, of chats that had none."""
    tokenizer = templated(template)
    thought = _chat("Tom", "<think>\n4</think>", "and?", answer)
    for chat in [_chat("Tom", answer), *([thought] if template == OPENS_THINK else [])]:
        (refused,) = encode_demonstrations(tokenizer, [chat])
        assert isinstance(refused, Refused)
        assert refused.reason == "template_opens_otherwise"
        assert "opens a turn with '<|user|>assistant\\n<think>\\n' for sampling" in refused.detail
        assert f"writes this one as '<|user|>assistant\\n{shown}" in refused.detail


@pytest.mark.parametrize("last_only", [True, False])
def test_thoughts_that_the_template_drops_refuse_a_demonstration(templated, last_only) -> None:
    """As the older templates of R1's distillates do; what is left is an answer without them."""
    tokenizer = templated(STRIPS_THINK.replace("<think>\n", ""))
    chats = [_chat("a", "<think>Two.</think>5"), _chat("a", "5"), _chat("a", "<think></think>5")]
    refused, *kept = encode_demonstrations(tokenizer, chats, last_only=last_only)
    assert isinstance(refused, Refused)
    assert (refused.reason, "before </think>" in refused.detail) == ("not_shown", True)
    assert [_trained(tokenizer, encoded) for encoded in kept] == [[f"5{EOS}"]] * 2
    shown = encode_demonstrations(templated(CHATML), chats)
    assert _trained(tokenizer, shown[0]) == [f"<think>Two.</think>5{EOS}"]


def test_a_demonstration_that_begins_as_the_template_opens_is_trained(templated) -> None:
    tokenizer = templated(OPENS_THINK)
    (encoded,) = encode_demonstrations(tokenizer, [_chat("Tom", "<think>\n4</think>")])
    assert _trained(tokenizer, encoded) == [f"4</think>{EOS}"]


@pytest.mark.parametrize(
    "template", [None, CHATML, FORGETFUL, CHATML.replace("m.content", "m.content|replace('x', '')")]
)
def test_many_rows_are_encoded_as_each_alone(templated, tokenizer, template) -> None:
    tokenizer = templated(template or tokenizer.chat_template)
    chats = [_chat(*f"x{n % 9} %s|y {n}|\n|12"[: n + 2].split("|")) for n in range(40)]
    chats += [[{"role": "system", "content": "s"}, *chat] for chat in chats]
    prompts = encode_prompts(tokenizer, chats)
    assert prompts == [encode_prompts(tokenizer, [chat])[0] for chat in chats]
    each = [encode_demonstrations(tokenizer, [chat])[0] for chat in chats]
    assert encode_demonstrations(tokenizer, chats) == each


def test_a_template_without_eos_is_an_error(templated) -> None:
    tokenizer = templated(CHATML.replace("<|end|>", ""))
    with pytest.raises(UserError, match=r"without the stop token '<\|end\|>'.*chat_template"):
        encode_demonstrations(tokenizer, [_chat("a", "b")])


@pytest.mark.parametrize(
    ("refuses", "why"),
    [("raise_exception('no bad rows')", "no bad rows"), ("1 + messages[0].content", "unsupported")],
)
def test_one_row_that_the_template_refuses_costs_that_row_only(
    templated, refuses: str, why: str
) -> None:
    tokenizer = templated(
        f"{{% if messages[0].content == 'bad' %}}{{{{ {refuses} }}}}{{% endif %}}{CHATML}"
    )
    good, bad = encode_prompts(tokenizer, [_chat("good"), _chat("bad")])
    assert isinstance(good, list)
    assert isinstance(bad, Refused)
    assert why in bad.detail
