"""What a model or a file wrote stays text on the page."""

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from rlcore.report.text import REPLACEMENT, SHOWN_IN_MARKDOWN, plain, quoted

HOSTILE = [
    "```\n</code><script>alert(1)</script>",
    "[x](javascript:alert(1)) ![y](http://evil.example/i.png)",
    "<img src=x onerror=alert(1)>",
    "a | b\n---|---\n1 | 2",
    "# head\n\n- item\n1. one\n> quote\n    code\n***\n===",
    "&lt;b&gt; &amp; \\<b> \\",
    "http://evil.example and www.evil.example and a@evil.example",
    "x\r\n\u2028# y\x85# z",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_it_is(text: str) -> None:
    """By an independent parser: only paragraphs of text in one quote, and the same words."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(quoted(text))
    kinds = {token.type for token in tokens}
    assert kinds <= {
        *("blockquote_open", "blockquote_close", "paragraph_open", "paragraph_close", "inline"),
    }
    inline = [token for token in tokens if token.type == "inline"]
    children = [child for token in inline for child in token.children or ()]
    assert {child.type for child in children} <= {"text", "text_special", "hardbreak"}
    shown = [
        "\n" if child.type == "hardbreak" else child.content
        for token in inline
        for child in (*(token.children or ()), Token("hardbreak", "", 0))
    ]
    assert "".join(shown).split() == text.split()


def test_text_is_cut_and_without_control_characters() -> None:
    assert "\x1b" not in quoted("\x1b[31mred")
    assert REPLACEMENT in plain("\x1b[31m")
    assert len(quoted("a" * 5000)) < SHOWN_IN_MARKDOWN + 20
