"""A script falls into the words and operators that bash sees."""

import pytest

from rlcore.verl.shell.lexer import (
    Arithmetic,
    LiteralText,
    Operator,
    Substitution,
    Variable,
    Word,
    tokens,
)
from schemas.errors import UserError


def shown(text: str) -> list[str]:
    """Return operators, and words with their unquoted text."""
    return [
        token.text
        if isinstance(token, Operator)
        else "".join(p.text for p in token.pieces if isinstance(p, LiteralText))
        for token in tokens(text)
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a b\tc", ["a", "b", "c"]),
        ("a # b 'c\nd", ["a", "\n", "d"]),
        ("a#b", ["a#b"]),
        ("a \\\n  b\\\nc \\  \nd", ["a", "bc", "d"]),
        ("a'b c'\"d e\"\\ f", ["ab cd e f"]),
        ("a&&b||c;d|e&", ["a", "&&", "b", "||", "c", ";", "d", "|", "e", "&"]),
        ("a 2>&1 >b 2>/dev/null", ["a", ">&", "1", ">", "b", ">", "/dev/null"]),
        ("a 2 >b", ["a", "2", ">", "b"]),
        ("a <<'E'\nif '\nE\nb", ["a", "<<", "E", "\n", "b"]),
        ("a\r\nb", ["a", "\n", "b"]),
        (r"$'a\tb'", ["a\tb"]),
        ("'${a.b}' ${a.b} ${.b} ${oc.select:a.b,${c.d}}",
         ["${a.b}", "${a.b}", "${.b}", "${oc.select:a.b,${c.d}}"]),
    ],
)  # fmt: skip
def test_words_and_operators(text: str, found: list[str]) -> None:
    """What is Hydra's stays as it is written."""
    assert shown(text) == found


def test_expansions_are_pieces_with_their_quoting() -> None:
    (word,) = tokens('a"$b"${c:-"d"}$((e+1))$(f g)')
    assert isinstance(word, Word)
    assert word.pieces == (
        LiteralText("a"),
        Variable("b", quoted=True),
        Variable("c", None, ":-", Word((LiteralText("d", True),), 1)),
        Arithmetic(Word((LiteralText("e+1", True),), 1)),
        Substitution("f g", 1),
    )
    (other,) = tokens("${a##*/}")
    assert isinstance(other, Word)
    assert other.pieces == (Variable("a", None, "other"),)
    assert [token.pieces for token in tokens("${a[@]} ${#a[@]}") if isinstance(token, Word)] == [
        (Variable("a", "@"),),
        (Variable("a", "@", "#"),),
    ]


def test_an_array_holds_words_over_lines_and_comments() -> None:
    (word,) = tokens("A+=(\n  a=1  # (x)\n  'b c'\n)")
    assert isinstance(word, Word)
    assert word.array is not None
    assert [each.line for each in word.array] == [2, 3]
    assert [each.pieces for each in word.array] == [
        (LiteralText("a=1"),),
        (LiteralText("b c", True),),
    ]


def test_an_operator_in_an_array_is_told() -> None:
    with pytest.raises(UserError, match="line 2: '&' is in an array"):
        tokens("A=(\na & b)")


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        (r"$'a\n\'b'", LiteralText("a\n'b", True)),
        ("$((a * (b + 1)))", Arithmetic(Word((LiteralText("a * (b + 1)", True),), 1))),
        (
            "$(a (b) ')' \")\" \"$(x ')')\" \\))",
            Substitution("a (b) ')' \")\" \"$(x ')')\" \\)", 1),
        ),
        ("${a,${b.c}}", Variable("a", None, "other")),
    ],
)
def test_what_is_inside_ends_at_its_own_bracket(text: str, piece: object) -> None:
    first, rest = tokens(f"{text} c")
    assert isinstance(first, Word)
    assert first.pieces == (piece,)
    assert rest == Word((LiteralText("c"),), 1)


@pytest.mark.parametrize(
    "text", ["'a", r"$'a\'", "$((a)", '$(a "b)', "$(a", "${a", "${.a", "`a", '"']
)
def test_an_open_bracket_is_told(text: str) -> None:
    with pytest.raises(UserError, match=r"is missing after line \d; close the quotes"):
        tokens(text)
