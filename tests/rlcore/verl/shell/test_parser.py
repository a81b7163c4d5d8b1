"""Statements nest as in bash, and what is no statement is told with its line."""

import pytest

from rlcore.verl.shell.parser import (
    Block,
    Case,
    Chain,
    Function,
    If,
    Simple,
    parse,
    simple_statements,
)
from schemas.errors import UserError


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a b=c > d 2>&1", Simple),
        ("> log a", Simple),
        ("[[ a == b && ( c < d ) ]]", Simple),
        ("a && b ||\n c", Chain),
        ("a | b |& c", "|"),
        ("! a", "!"),
        ("if a; then b; elif c\nthen d; else e; fi >&2", If),
        ("case $a in x|y) b;; (*) c\n;; esac", Case),
        ("case a in x) b; esac", Case),
        ("for a in b c; do d; done", "loop"),
        ("for ((i = 0; i < 3; i++)); do d; done", "loop"),
        ("while read a\ndo b; done < c", "loop"),
        ("{ a; b; }", "{"),
        ("( a; b )", "("),
        ("f() { a; }", Function),
        ("function f { a; }", Function),
    ],
)
def test_each_statement_is_of_its_kind(text: str, kind: type | str) -> None:
    (statement,) = parse(f"{text}\n")
    assert (statement.kind if isinstance(statement, Block) else type(statement)) == kind


def test_every_command_at_any_depth_is_found() -> None:
    text = """
    a && { b | ! c; }
    if d; then e; else case f in g) h ;; esac; fi
    for i in j; do k; done; l() { ( m ); }
    """
    names = [simple.words[0].bare for simple in simple_statements(parse(text))]
    assert names == ["a", "b", "c", "d", "e", "h", "i", "k", "m"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("if a; then b\n", "line 1 has .* where 'fi' belongs"),
        ("a\nfi", "line 2 has 'fi' where a command belongs"),
        ("a &&", "its end.* where a command belongs"),
        ("a; )", r"line 1 has '\)' where a command belongs"),
        ("case a x", "has 'x' where 'in' belongs"),
        ("a >\n", "the line's end where a command belongs"),
        ("[[ a", "its end"),
    ],
)
def test_text_that_is_no_script_is_told(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=f"does not read as shell: .*{sentence}"):
        parse(text)
