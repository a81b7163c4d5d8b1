"""A test holds as in bash, or it is not known."""

import pytest

from rlcore.from_verl.shell.conditions import holds
from rlcore.from_verl.shell.value import Text


@pytest.mark.parametrize(
    ("words", "plain", "conditional"),
    [
        ("", False, False),
        ("a", True, True),
        ("-n a", True, True),
        ("-z a", False, False),
        ("! -z a", True, True),
        ("a = a", True, True),
        ("a == b", False, False),
        ("a != b", True, True),
        ("ab = a*", False, True),
        ("3 -gt 2", True, True),
        ("3 -le 2", False, False),
        ("x -gt 2", None, None),
        ("-f a", None, None),
        ("a = a && b = c", None, False),
        ("a = b || b = b", None, True),
        ("a = b && -f x", None, False),
        ("a = a && -f x", None, None),
    ],
)
def test_tests(words: str, plain: bool | None, conditional: bool | None) -> None:
    texts = [Text(word) for word in words.split()]
    assert holds(texts, conditional=False) is plain
    assert holds(texts, conditional=True) is conditional


def test_a_value_that_is_not_known_decides_nothing_and_one_that_is_unset_is_empty() -> None:
    assert holds([Text("-n"), Text("$(x)", unknown="why")], conditional=False) is None
    assert holds([Text("-z"), Text("", unset="why")], conditional=False) is True
