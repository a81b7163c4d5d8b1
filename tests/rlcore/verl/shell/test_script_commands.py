"""A test holds as in bash, or it is not known; what a script asks about the machine is answered
here, and said where it may differ."""

from datetime import datetime

import pytest

from rlcore.verl.shell.expansion import Text
from rlcore.verl.shell.parser import parse
from rlcore.verl.shell.script import Reading, holds, read_script


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


@pytest.mark.parametrize(("command", "status"), [(":", "yes"), ("true x", "yes"), ("false", "no")])
def test_what_changes_nothing_is_answered(command: str, status: str) -> None:
    assert _output(f"{command} && echo yes || echo no") == Text(status)


@pytest.mark.parametrize("command", ["rm x", "python3 x.py", "python3 -c 'import a; b()'", "date"])
def test_nothing_else_is(command: str) -> None:
    assert "is known only where the script runs" in _output(command).unknown


def test_an_import_is_looked_up_and_not_made() -> None:
    found = _reading("python3 -c 'import antigravity' && x=1; python -c 'import no_such' || train")
    assert found.command is not None
    assert found.remarks == [
        "`python3 -c import antigravity`: antigravity is installed here",
        "`python -c import no_such`: no_such is not installed here",
    ]


def test_the_date_is_that_of_the_translation() -> None:
    assert _output("date +%Y") == Text(str(datetime.now().year))


def _reading(text: str) -> Reading:
    return read_script(parse(text), lambda words: words[:1] == ["train"], {})


def _output(command: str) -> Text:
    """Return what ``$(command)`` is."""
    found = _reading(f'train "$({command})"').command
    assert found is not None
    return found[1]
