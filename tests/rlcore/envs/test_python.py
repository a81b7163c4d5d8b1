import pytest

from rlcore.envs.python import Python
from rlcore.sandbox.probe import find_sandbox
from schemas.errors import UserError

pytestmark = pytest.mark.timeout(60)


def test_a_program_says_what_it_prints_and_how_it_ended() -> None:
    tool = Python(timeout_s=3.0, output_characters=50)
    assert tool.python("print(6 * 7)") == "42"
    assert tool.python("x = 1") == "(the program printed nothing)"
    assert tool.python("print(1)\n1 / 0") == "1\nerror: ZeroDivisionError: division by zero"
    assert tool.python("while True: pass") == "error: no end within 2 s"
    assert tool.python("print('a' * 300 + 'b')") == "a" * 49 + "b"


def test_nothing_of_the_machine_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "seen")
    tool = Python()
    assert "seen" not in tool.python("import os; print(os.environ.get('CANARY'))")
    assert "error" in tool.python("import socket; socket.create_connection(('1.1.1.1', 80))")


def test_without_a_sandbox_there_is_no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of the policy would be answered with an error, for a whole run."""
    monkeypatch.setattr("rlcore.sandbox.probe.weakness", lambda sandbox: "it reads files")
    find_sandbox.cache_clear()
    with pytest.raises(UserError, match=r"no level of sandbox .* environment\.options\.sandbox to"):
        Python()
    find_sandbox.cache_clear()


@pytest.mark.parametrize(
    "options", [{"memory_mib": 1}, {"timeout_s": 0.5}, {"sandbox": "bubblewrap"}]
)
def test_options_that_cannot_work_are_refused(options: dict[str, float | str]) -> None:
    with pytest.raises(UserError, match="environment"):
        Python(**options)  # pyright: ignore[reportArgumentType]
