"""A template that is run once per shape writes what it writes chat by chat, or is not run so."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.data.shapes import roles_of, shape_of
from rlcore.models.tokenizer import MINIMAL_TEMPLATE, train_tokenizer

CHATML = (  # Qwen2.5's, without its tools
    "{%- if messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nYou help, 100%s sure.<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if (message.role == 'user') or (message.role == 'system' and not loop.first)"
    " or (message.role == 'assistant' and not message.tool_calls) %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
TRIMMED = (  # Llama 3's
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start|>' + message['role'] + '<|end|>\\n\\n'"
    " + message['content'] | trim + '<|eot|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\\n\\n' }}{% endif %}"
).replace("bos", "eos_token")
TYPED = (  # as those that also take parts of contents
    "{% for m in messages %}{% if m.content is string %}{{ m.role }}: {{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}\n{% endfor %}"
    "{{ tools | tojson if tools else '' }}{{ messages[0].content.rstrip('x \n') }}"
)
PROVEN = {"minimal": MINIMAL_TEMPLATE, "chatml": CHATML, "trimmed": TRIMMED, "typed": TYPED}
# What looks at a content in ways that a sample of contents may not show.
LOOKING = {
    "in": "{% if '</think>' in m.content %}{{ 'thought' }}{% endif %}{{ m.content }}",
    "equal": "{{ 'again' if m.content == 'same' else '' }}{{ m.content }}",
    "any of": "{{ 'yes' if m.content in ['a', 'b'] else '' }}{{ m.content }}",
    "empty": "{{ m.content if m.content else 'nothing' }}",
    "starts": "{{ '!' if m.content.startswith('x') else '' }}{{ m.content }}",
    "last part": "{{ m.content.split('</think>')[-1] }}",
    "slice": "{{ m.content[:99] }}",
    "length": "{{ 'long' if m.content|length > 99 else '' }}{{ m.content }}",
    "number": "{{ m.content|int }}{{ m.content }}",
    "sequence": "{{ 'yes' if m.content is sequence else 'no' }}{{ m.content }}",
    "replaced": "{{ m.content|replace('x', 'y') }}",
    "upper": "{{ m.content|upper }}",
    "escaped": "{{ m.content|e }}",
    "json": "{{ m|tojson }}",
    "repeated": "{{ m.content * 2 }}",
    "formatted": "{{ '%s' % m.content if ('%s' % m.content)|length < 99 else '' }}",
    "joined": "{{ [m.content, '']|join|replace('x', 'y') }}",
    "tilde": "{{ (m.content ~ '')|trim|replace('x', 'y') }}",
    "of both": "{{ (m.role + m.content)|trim }}",
    "set block": "{% set c %}{{ m.content }}{% endset %}{{ c|replace('x', 'y') }}",
    "filter block": "{% filter upper %}{{ m.content }}{% endfilter %}",
    "macro": "{% macro w(m) %}{{ m.content }}{% endmacro %}{{ w(m)|replace('x', 'y') }}",
    "key": "{{ {'a': 'b'}[m.content] }}{{ m.content }}",
    "field": "{{ m.content.text }}{{ m.content }}",
    "inner field": "{{ m.content.parts }}{{ m.content }}",
    "clock": "{{ strftime_now('%H:%M:%S:%f') if strftime_now is defined else '' }}{{ m.content }}",
    "chance": "{{ ['a', 'b']|random }}{{ m.content }}",
    "identity": "{{ 'same' if m.content is sameas m.role else '' }}{{ m.content }}",
    "unknown tag": "{% generation %}{{ m.content }}{% endgeneration %}",
}
ROLES = (("user",), ("system", "user"), ("user", "assistant", "user", "assistant"))
TOOLS = [{"type": "function", "function": {"name": "add", "description": "100%"}}]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["Tom has 12 eggs and gets 30. How many now?"] * 20, 320)


def chat(roles: Sequence[str], contents: Sequence[str]) -> list[dict[str, str]]:
    pairs = zip(roles, contents, strict=False)
    return [{"role": role, "content": content} for role, content in pairs]


@pytest.mark.parametrize("name", PROVEN)
@pytest.mark.parametrize("roles", ROLES)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_filled_shape_is_what_the_template_writes(tokenizer, name, roles, data) -> None:
    """One character off, SFT would train tokens that no rollout has."""
    tokenizer.chat_template = PROVEN[name]
    odd = st.sampled_from(
        ["", " ", "\n x \t", "%s %d %", "{{ m }}", "</think>", "<|end|>", "\u2028"]
    )
    contents = data.draw(st.lists(odd | st.text(), min_size=4, max_size=4))
    one, open_turn = chat(roles, contents), data.draw(st.booleans())
    tools = data.draw(st.sampled_from([[], TOOLS]))
    shape = shape_of(tokenizer, roles, tools, open_turn=open_turn)
    assert shape is not None, "the template is run chat by chat"
    assert shape.fill(one) == tokenizer.apply_chat_template(
        one, tools=tools or None, tokenize=False, add_generation_prompt=open_turn
    )


@pytest.mark.parametrize("name", LOOKING)
def test_a_template_that_looks_at_contents_has_no_shapes(tokenizer, name) -> None:
    """Rows whose contents it treats otherwise would get the text of others."""
    tokenizer.chat_template = f"{{% for m in messages %}}{LOOKING[name]}{{% endfor %}}"
    assert shape_of(tokenizer, ("user", "assistant"), (), open_turn=False) is None


def test_a_shape_that_the_template_refuses_is_left_to_its_rows(tokenizer) -> None:
    tokenizer.chat_template = (
        "{% if messages|length > 1 %}{{ raise_exception('one at most') }}{% endif %}"
        + MINIMAL_TEMPLATE
    )
    assert shape_of(tokenizer, ("user", "assistant"), (), open_turn=False) is None
    assert shape_of(tokenizer, ("user",), (), open_turn=False) is not None


def test_a_tokenizer_that_renders_otherwise_has_no_shapes(tokenizer) -> None:
    class Own(type(tokenizer)):
        def apply_chat_template(self, *args, **named):
            return "mine"

    assert shape_of(Own.__new__(Own), ("user",), (), open_turn=False) is None


def test_a_message_with_more_than_a_content_has_no_shape() -> None:
    """A template may look at any part of a message."""
    plain = chat(("user", "assistant"), ["a", "b"])
    assert roles_of(plain) == ("user", "assistant")
    assert roles_of([*plain, {"role": "user", "content": "c", "name": "Tom"}]) is None
    assert roles_of([{"content": "c", "role": "user"}]) is None
