"""What a script asks about the machine is answered here, and said where it may differ."""

from datetime import datetime

from rlcore.from_verl.shell.probes import Answer, answer


def test_only_what_changes_nothing_is_answered() -> None:
    assert answer([":"]) == answer(["true", "x"]) == answer([]) == Answer(True)
    assert answer(["false"]) == Answer(False)
    for other in (["rm", "x"], ["python3", "x.py"], ["python3", "-c", "import a; b()"], ["date"]):
        assert answer(other) is None


def test_an_import_is_looked_up_and_not_made() -> None:
    there, absent = (
        answer(["python3", "-c", "import antigravity"]),
        answer(["python", "-c", "import no_such_module"]),
    )
    assert there is not None
    assert absent is not None
    assert (there.status, absent.status) == (True, False)
    assert (
        absent.remark == "`python -c import no_such_module`: no_such_module is not installed here"
    )
    assert answer(["python3", "-c", "import __main__"]) is not None


def test_the_date_is_that_of_the_translation() -> None:
    assert answer(["date", "+%Y"]) == Answer(True, str(datetime.now().year))
