"""A recipe that rewards programs is refused before it starts where nothing confines them."""

from collections.abc import Iterator
from typing import Any

import pytest

from flows.cli import main
from flows.paths import RECIPES
from rlcore.plan.preconditions import check_sandbox
from rlcore.recipes.load import load_recipe
from rlcore.sandbox.probe import find_sandbox
from rlcore.sandbox.types import Level
from schemas.errors import UserError
from tests.kernel import strongest

CODE = [{"name": "arithmetic"}, {"name": "code", "weight": 0.0}]


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    find_sandbox.cache_clear()
    yield
    find_sandbox.cache_clear()


def level(**overrides: Any) -> Level | None:
    given = {"reward.functions": CODE, **overrides}
    return check_sandbox(load_recipe("quickstart", given, directory=RECIPES))


def forbid_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bubblewrap, and a kernel that takes no filter."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("rlcore.sandbox.levels.filter_code", lambda may_exec: b"\0" * 8)


def test_only_recipes_that_run_programs_here_need_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert level() is strongest()
    forbid_all(monkeypatch)
    assert level(**{"reward.functions": CODE[:1]}) is None
    assert level(**{"hardware.ray_address": "10.0.0.1:6379"}) is None
    find_sandbox.cache_clear()
    assert level(**{"reward.sandbox": "none"}) is Level.NONE
    with pytest.raises(UserError, match="no level of sandbox holds on this machine"):
        level()


def test_the_dry_run_names_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    functions = '[{"name": "arithmetic"}, {"name": "code", "weight": 0.0}]'
    assert main(["run", "quickstart", "--dry-run", "-o", f"reward.functions={functions}"]) == 0
    assert f"reward code runs programs at level {strongest()}" in capsys.readouterr().out


def test_a_run_without_one_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forbid_all(monkeypatch)
    functions = '[{"name": "arithmetic"}, {"name": "code", "weight": 0.0}]'
    assert main(["run", "quickstart", "--dry-run", "-o", f"reward.functions={functions}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: no level of sandbox holds on this machine (")
    assert said.count("\n") == 1


def test_options_that_exceed_the_time_of_a_row_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    functions = '[{"name": "arithmetic"}, {"name": "code", "options": {"timeout_s": 30}}]'
    assert main(["run", "quickstart", "--dry-run", "-o", f"reward.functions={functions}"]) == 2
    assert "reward.functions[1]: option timeout_s = 30" in capsys.readouterr().err
