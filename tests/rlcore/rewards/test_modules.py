"""The user's modules are found without running them."""

import sys
from pathlib import Path

import pytest

from rlcore.rewards.modules import check_module, find_module, import_module
from schemas.errors import UserError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose import fails, with a module, and a folder that is no package, in it."""
    folder = tmp_path / "mine_modules"
    (folder / "plain").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('was run')\n")
    (folder / "rewards.py").write_text("1 / 0\n")
    (folder / "plain" / "judge.py").write_text("import mine_needs_this\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mine_modules", "__init__.py"),
        ("mine_modules.rewards", "rewards.py"),
        ("mine_modules.plain.judge", "judge.py"),
        ("rlcore.rewards.gsm8k", "gsm8k.py"),
    ],
)
def test_a_module_is_found_and_no_package_on_the_way_is_run(name: str, file: str) -> None:
    """The process that checks a recipe holds the user's keys, and may be a server's."""
    spec = find_module(name)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).name == file
    check_module(f"{name}:f", "reward.functions[0].name")
    assert "mine_modules" not in sys.modules


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    "name", ["nowhere", "mine_modules.reward", "mine_modules.rewards.more", "mine_modules..x", "."]
)
def test_a_module_that_is_not_there_is_not_found(name: str) -> None:
    assert find_module(name) is None
    with pytest.raises(UserError, match=r"^a\.b = .*: there is no module .*PYTHONPATH"):
        check_module(f"{name}:f", "a.b")


def test_an_import_that_fails_is_a_sentence_with_its_place(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "__init__.py").write_text("")
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    (package / "keys.py").write_text("import os\n\nKEY = os.environ['JUDGE_KEY']\n")
    (package / "leaves.py").write_text("import sys\nsys.exit('no licence')\n")
    said = {
        "rewards": r"ZeroDivisionError: division by zero \(rewards\.py line 1\); fix the module",
        "plain.judge": r"No module named 'mine_needs_this' \(judge\.py line 1\); install what",
        "keys": r"KeyError: 'JUDGE_KEY' \(keys\.py line 3\); name the variable in reward\.env",
        "leaves": r"SystemExit: no licence \(leaves\.py line 2\)",
    }
    for module, sentence in said.items():
        name = f"mine_modules.{module}"
        with pytest.raises(UserError, match=sentence) as error:
            import_module(name, f"{name}:f", "reward.functions[0].name")
        assert str(error.value).startswith(f"reward.functions[0].name = '{name}:f' cannot be")
        assert "\n" not in str(error.value)
    sys.modules.pop("mine_modules", None)
