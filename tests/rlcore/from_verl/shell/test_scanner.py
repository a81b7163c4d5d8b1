"""Quotes and brackets end where the shell says; one that stays open is told with its line."""

import pytest

from rlcore.from_verl.shell.scanner import Scanner
from schemas.errors import UserError


@pytest.mark.parametrize(
    ("read", "text", "inner", "rest"),
    [
        (lambda at: at.until("'"), "'a b'c", "a b", "c"),
        (Scanner.escaped, r"'a\n\'b'c", "a\n'b", "c"),
        (Scanner.arithmetic, "((a * (b + 1)))c", "a * (b + 1)", "c"),
        (Scanner.parenthesis, "(a (b) ')' \")\" \"$(x ')')\" \\))c", None, "c"),
        (Scanner.braces, "{a,${b.c}}d", "{a,${b.c}}", "d"),
    ],
)
def test_what_is_inside_ends_at_its_own_bracket(read, text: str, inner: str, rest: str) -> None:
    scanner = Scanner(text)
    found = read(scanner)
    assert found == (text[1 : -1 - len(rest)] if inner is None else inner)
    assert text[scanner.at :] == rest


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda at: at.until("'"), "'a"),
        (Scanner.escaped, r"'a\'"),
        (Scanner.arithmetic, "((a)"),
        (Scanner.parenthesis, '(a "b)'),
        (Scanner.parenthesis, "(a"),
        (Scanner.braces, "{a"),
        (lambda at: at.close("}"), ""),
    ],
)
def test_an_open_bracket_is_told(read, text: str) -> None:
    with pytest.raises(UserError, match=r"is missing after line \d; close the quotes"):
        read(Scanner(text))
