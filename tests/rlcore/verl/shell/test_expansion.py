"""Variables, defaults and arrays become the words that bash would pass."""

import pytest

from rlcore.verl.shell.expansion import LONGEST, Expansion, Text, assigns, join
from rlcore.verl.shell.lexer import Word, tokens
from schemas.errors import UserError


def expansion() -> Expansion:
    return Expansion(
        {
            "a": Text("1"),
            "e": Text(""),
            "HOME": Text("/h"),
            "list": (Text("x"), Text("y z")),
            "none": (),
        },
        lambda piece: Text(f"$({piece.text})", unknown="not run"),
    )


def words(text: str) -> list[Word]:
    return [token for token in tokens(text) if isinstance(token, Word)]


def fields(text: str) -> list[str]:
    found = expansion()
    return [field.value for word in words(text) for field in found.fields(word)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("k=$a ${a}b \"$a c\" '$a'", ["k=1", "1b", "1 c", "$a"]),
        ("$HOME/x ${gone:-d}", ["/h/x", "d"]),
        ("${e:-d} ${e-d}x ${u-d} ${a:-d}", ["d", "x", "d", "1"]),
        ("${e:+d}x ${e+d}x ${a:+d}x ${u:+d}x", ["x", "dx", "dx", "x"]),
        ("${u:=5} $u", ["5", "5"]),
        ("${u:-${v:-'p q'}} ${u:-p q}s x${w:- y }z", ["p q", "p", "qs", "x", "y", "z"]),
        ('"${u:-}" ${u:-} "${list[*]}"', ["", "x y z"]),
        ('"${u:-$a $HOME}"', ["1 /h"]),
        ('"${list[@]}"', ["x", "y z"]),
        ("${list[@]}", ["x", "y", "z"]),
        ('p"${list[@]}"s', ["px", "y zs"]),
        ('"${none[@]}" "$@" $* "${@:-}"', []),
        ('${none[@]+"${none[@]}"} ${list[@]+"${list[@]}"}', ["x", "y z"]),
        ("$list ${list[1]} ${#list[@]} ${#a} $#", ["x", "y", "z", "2", "1", "0"]),
        ("$e $u '' \"$e\"", ["", ""]),
        ("k=$((a + 1))", ["k=2"]),
        ("k=${1:-vllm} ${2-$a}b ${1:+given} ${10:-x}", ["k=vllm", "1b", "x"]),
    ],
)
def test_fields(text: str, found: list[str]) -> None:
    assert fields(text) == found


@pytest.mark.parametrize(
    ("text", "unknown", "unset"),
    [
        ("k=$u", "", r"shell variable $u has no value in the text; write it out"),
        ("k=${gone}", "", r"shell variable $gone has no value in the text; write it out"),
        ("k=${list[9]}", "", r"shell variable $list has no value in the text; write it out"),
        ("k=$(x y)", "not run", ""),
        ("k=${a%b}", "${a...} takes a part of a value, which is not read; write its value out", ""),
        ("k=${1?gone}", "$1 is known to a running script only; write its value out", ""),
        ("k=$1", "$1 is known to a running script only; write its value out", ""),
    ],
)
def test_what_is_not_known_says_why(text: str, unknown: str, unset: str) -> None:
    (word,) = words(text)
    (found,) = expansion().fields(word)
    assert (found.unknown, found.unset, found.value[:2]) == (unknown, unset, "k=")
    assert expansion().text(word).problem == unknown + unset


def test_assignments() -> None:
    made = expansion()
    for word in words("n=$a n+=2 list+=(w \"$n\") list+=v m=(p) e+=(q) s='t u'"):
        assert assigns(word)
        made.assign(word)
    listed = made.variables["list"]
    assert isinstance(listed, tuple)
    assert [text.value for text in listed] == ["x", "y z", "w", "12", "v"]
    assert made.variables["e"] == (Text(""), Text("q"))
    assert made.variables["s"] == Text("t u")
    assert not any(assigns(word) for word in words("'a'=b a.b=c \"$a\"=d 1=2 =x"))


def test_a_value_cannot_fill_the_memory() -> None:
    """Each line of a script may double a variable."""
    made = expansion()
    (half,) = words(f"x={'0' * (LONGEST // 2)}")
    made.assign(half)
    (twice,) = words('x="$x$x"')
    with pytest.raises(UserError, match="x grows beyond 1000000 characters; give the output of"):
        made.assign(twice)


def test_what_is_not_known_of_a_part_is_not_known_of_the_whole() -> None:
    joined = join([Text("a"), Text("b", unknown="why"), Text("", unset="that")])
    assert joined == Text("ab", "why", "that")
    assert joined.problem == "why"
