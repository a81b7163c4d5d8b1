"""A test holds as in bash, or it is not known; what a script asks about the machine is answered
here, and said where it may differ."""

from datetime import datetime

import pytest

from rlcore.verl.shell.expansion import Text
from rlcore.verl.shell.script import CommandResult, answer, holds

NOW = datetime(2026, 5, 4, 3, 2, 1)


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


def test_only_what_changes_nothing_is_answered() -> None:
    assert (
        answer([":"], NOW) == answer(["true", "x"], NOW) == answer([], NOW) == CommandResult(True)
    )
    assert answer(["false"], NOW) == CommandResult(False)
    for other in (["rm", "x"], ["python3", "x.py"], ["python3", "-c", "import a; b()"], ["date"]):
        assert answer(other, NOW) is None


def test_an_import_is_looked_up_and_not_made() -> None:
    there, absent = (
        answer(["python3", "-c", "import antigravity"], NOW),
        answer(["python", "-c", "import no_such_module"], NOW),
    )
    assert there is not None
    assert absent is not None
    assert (there.status, absent.status) == (True, False)
    assert (
        absent.remark == "`python -c import no_such_module`: no_such_module is not installed here"
    )
    assert answer(["python3", "-c", "import __main__"], NOW) is not None


def test_the_date_is_that_of_the_translation() -> None:
    assert answer(["date", "+%Y_%m"], NOW) == CommandResult(True, "2026_05")
