"""A name in a recipe finds its function, or says why not."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlcore.algorithms.plugins import resolve
from schemas.errors import UserError

BUILTIN: dict[str, Any] = {"grpo": len, "rloo": max}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package ``mine_plugins`` with one good module and two that fail."""
    folder = tmp_path / "mine_plugins"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "losses.py").write_text("def squared():\n    return 4\n\nSCALE = 2\n")
    (folder / "needs_more.py").write_text("import mine_plugins_need_this\n")
    (folder / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "mine_plugins"
    for name in [name for name in sys.modules if name.split(".")[0] == "mine_plugins"]:
        del sys.modules[name]


def test_a_name_is_ours_and_a_dotted_one_the_users(package: str) -> None:
    assert resolve("grpo", BUILTIN, "rl.x") is len
    assert resolve(f"{package}.losses:squared", BUILTIN, "rl.x")() == 4


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rlo", r"^rl\.x = 'rlo' is unknown; use one of grpo, rloo, or .*; did you mean 'rloo'\?$"),
        ("losses:", "must be written 'package.module:function'"),
        (":squared", "must be written 'package.module:function'"),
        ("losses:a.b", "must be written 'package.module:function'"),
        ("nowhere:f", "there is no module 'nowhere'; put its folder on PYTHONPATH or install"),
        ("mine_plugins.nowhere:f", r"there is no module 'mine_plugins\.nowhere'"),
        ("mine_plugins.losses:sqared", r"has no sqared\(\); did you mean 'squared'\?"),
        ("mine_plugins.losses:SCALE", "is of type int, not a function"),
    ],
)
@pytest.mark.usefixtures("package")
def test_a_name_that_leads_nowhere_is_told_with_its_place(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        resolve(name, BUILTIN, "rl.x")
    assert str(error.value).startswith(f"rl.x = '{name}'")


def test_what_is_wrong_inside_the_users_module_is_told_with_its_line(package: str) -> None:
    """'There is no module' would send the user to look for a file that is there."""
    for module, said in (("needs_more", "mine_plugins_need_this"), ("broken", "ZeroDivisionError")):
        with pytest.raises(UserError, match=rf"cannot be imported: .*{said}.*{module}\.py line 1"):
            resolve(f"{package}.{module}:f", BUILTIN, "rl.x")


def test_a_file_is_taken_as_a_reward_is(package: str, tmp_path: Path) -> None:
    file = tmp_path / package / "losses.py"
    assert resolve(f"{file}:squared", BUILTIN, "rl.x")() == 4
    with pytest.raises(UserError, match=r"losses\.py has no sqared\(\); did you mean 'squared'"):
        resolve(f"{file}:sqared", BUILTIN, "rl.x")
    with pytest.raises(UserError, match=r"there is no file .*/nowhere\.py; a relative path is one"):
        resolve(f"{tmp_path}/nowhere.py:f", BUILTIN, "rl.x")
