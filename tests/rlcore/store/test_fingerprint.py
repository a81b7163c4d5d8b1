"""A cache that does not see a code change serves results of code that is gone."""

import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlcore.store.fingerprint import code_of, module_digest, path_of, source_of

FILES = {
    "tasks/__init__.py": '"""Tasks."""\n',
    "tasks/sft.py": (
        "from rlcore.supervised.sft import train\nfrom tasks.run_page.artifacts import show\n"
    ),
    "tasks/run_page/artifacts.py": "def show(): ...\n",
    "rlcore/__init__.py": '"""Core."""\n',
    "rlcore/supervised/sft.py": (
        '"""SFT."""\nimport torch as t\nfrom rlcore.rewards import exact, fuzzy\n\n'
        'BY_NAME = {"exact": exact.scorer, "fuzzy": fuzzy.scorer}\n'
        'WORKER = "rlcore.models.packing:Packer"\n\n\ndef train():\n'
        "    from rlcore.models import packing\n\n    return packing.pack(t.ones(1))\n"
    ),
    "rlcore/models/__init__.py": '"""Models."""\n',
    "rlcore/models/packing.py": "ROWS = 1\n\n\ndef pack():\n    return ROWS\n",
    "rlcore/rewards/exact.py": "def scorer():\n    return 1\n",
    "rlcore/rewards/fuzzy.py": "def scorer():\n    return 2\n",
    "rlcore/evaluation/export.py": "X = 1\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, FILES)
    return tmp_path


def digest(root: Path) -> str:
    path_of.cache_clear()
    source_of.cache_clear()
    return code_of("tasks.sft", without=("tasks.run_page",), root=root).digest


def test_follows_imports_to_any_depth_also_inside_functions(root: Path) -> None:
    path_of.cache_clear()
    source_of.cache_clear()
    code = code_of("tasks.sft", without=("tasks.run_page",), root=root)
    assert list(code.modules) == [
        "rlcore.models.packing",
        "rlcore.rewards.exact",
        "rlcore.rewards.fuzzy",
        "rlcore.supervised.sft",
        "tasks.sft",
    ]
    assert code.libraries == ("torch",)


@pytest.mark.parametrize(
    "name", ["tasks/sft.py", "rlcore/supervised/sft.py", "rlcore/models/packing.py"]
)
def test_changes_with_code_it_reaches(root: Path, name: str) -> None:
    before = digest(root)
    (root / name).write_text(FILES[name] + "\nEXTRA = 2\n")
    assert digest(root) != before, f"a change of {name} would go unseen"


@pytest.mark.parametrize("name", ["rlcore/evaluation/export.py", "tasks/run_page/artifacts.py"])
def test_stays_when_other_code_changes(root: Path, name: str) -> None:
    before = digest(root)
    (root / name).write_text(FILES[name] + "\nEXTRA = 2\n")
    assert digest(root) == before, f"a change of {name} would retrain for nothing"


@pytest.mark.parametrize("name", ["show", "SHOWN"])
def test_what_is_left_out_may_change_whatever_is_called_there(root: Path, name: str) -> None:
    (root / "tasks/sft.py").write_text(FILES["tasks/sft.py"] + f"\n{name}()\n")
    (root / "tasks/run_page/artifacts.py").write_text("SHOWN = 1\ndef show(): ...\n")
    before = digest(root)
    (root / "tasks/run_page/artifacts.py").write_text("SHOWN = 2\ndef show(): return 1\n")
    assert digest(root) == before


SFT = "rlcore/supervised/sft.py"
# What changes nothing: name of the file, text -> text.
EQUAL: dict[str, tuple[str, Callable[[str], str]]] = {
    "docstring and comment": (SFT, lambda text: text.replace('SFT."""', 'Better."""  # said')),
    "format": (SFT, lambda text: text.replace("t.ones(1)", "t.ones( 1, )")),
}
# What changes something, though little of the text does.
OTHER: dict[str, tuple[str, Callable[[str], str]]] = {
    "two functions of one name": (
        SFT,
        lambda text: (
            text.replace("exact.scorer", "_")
            .replace("fuzzy.sc", "exact.sc")
            .replace("_,", "fuzzy.scorer,")
        ),
    ),
    "another library's function": (SFT, lambda text: text.replace("torch as t", "numpy as t")),
    "another class of the worker": (SFT, lambda text: text.replace(":Packer", ":Other")),
    "a constant": ("rlcore/models/packing.py", lambda text: text.replace("ROWS = 1", "ROWS = 2")),
    "True for 1": ("rlcore/models/packing.py", lambda text: text.replace("= 1", "= True")),
}


@pytest.mark.parametrize("what", EQUAL)
def test_stays_when_only_the_text_changes(root: Path, what: str) -> None:
    name, edit = EQUAL[what]
    before, text = digest(root), edit(FILES[name])
    assert text != FILES[name]
    (root / name).write_text(text)
    assert digest(root) == before


@pytest.mark.parametrize("what", OTHER)
def test_changes_when_little_of_the_text_does(root: Path, what: str) -> None:
    name, edit = OTHER[what]
    before, text = digest(root), edit(FILES[name])
    assert text != FILES[name]
    (root / name).write_text(text)
    assert digest(root) != before


def test_a_module_that_is_not_there_is_named(root: Path) -> None:
    with pytest.raises(LookupError, match=r"'tasks\.stf' is no module of flows, tasks"):
        code_of("tasks.stf", root=root)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


USERS = {
    "mine/__init__.py": "",
    "mine/rewards.py": "from mine.text import clean\nfrom . import units\nimport json\n",
    "mine/text.py": "import re\n\nfrom mine.deep.signs import SIGN\n",
    "mine/units.py": "X = 1\n",
    "mine/deep/__init__.py": "",
    "mine/deep/signs.py": "SIGN = 1\n",
    "mine/other.py": "Y = 1\n",
    "elsewhere.py": "Z = 1\n",
    "flat/reward.py": "import helper\n",
    "flat/helper.py": "W = 1\n",
}


@pytest.mark.parametrize(
    ("edited", "seen"),
    [
        ("mine/rewards.py", True),
        ("mine/text.py", True),
        ("mine/units.py", True),
        ("mine/deep/signs.py", True),  # a sign flipped two imports deep
        ("mine/deep/__init__.py", True),
        ("mine/__init__.py", True),
        ("mine/other.py", False),
        ("elsewhere.py", False),
    ],
)
def test_what_a_users_module_imports_counts(tmp_path: Path, edited: str, seen: bool) -> None:
    """Else the policy trained on yesterday's sign comes back from the cache."""
    write(tmp_path, USERS)
    before = module_digest("mine.rewards", tmp_path / "mine/rewards.py")
    (tmp_path / edited).write_text(USERS[edited] + "SIGN = -1\n")
    assert (module_digest("mine.rewards", tmp_path / "mine/rewards.py") != before) == seen


def test_a_file_beside_a_users_module_counts(tmp_path: Path) -> None:
    write(tmp_path, USERS)
    where = tmp_path / "flat/reward.py"
    before = module_digest("reward", where)
    assert before == module_digest("reward", where)
    (tmp_path / "flat/helper.py").write_text("W = -1\n")
    assert module_digest("reward", where) != before


def test_a_file_above_a_users_module_counts(tmp_path: Path) -> None:
    """In a function, such an import may stand unused where the module is loaded by its file."""
    write(tmp_path, USERS | {"flat/reward.py": "def f():\n    from ..elsewhere import Z\n"})
    where = tmp_path / "flat/reward.py"
    before = module_digest("reward", where)
    (tmp_path / "elsewhere.py").write_text("Z = -1\n")
    assert module_digest("reward", where) != before


def test_another_thread_may_parse_meanwhile() -> None:
    """CPython fails one of two threads that parse at once; imports in Prefect's threads parse."""

    def let_others_run(phase: str, info: dict[str, int]) -> None:
        del phase, info
        time.sleep(0)

    def reached() -> str:
        path_of.cache_clear()
        source_of.cache_clear()
        return code_of("tasks.sft").digest

    gc.callbacks.append(let_others_run)
    thresholds = gc.get_threshold()
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(reached) for _ in range(2)]
            assert len({one.result() for one in asked}) == 1
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(let_others_run)
