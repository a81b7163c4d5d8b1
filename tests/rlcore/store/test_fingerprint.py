"""A cache that does not see a code change serves results of code that is gone."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlcore.store.fingerprint import (
    NEUTRAL,
    ROOT,
    code_fingerprint,
    code_modules,
    module_digest,
    read_source,
)
from schemas.errors import UserError

FILES = {
    "tasks/__init__.py": '"""Tasks."""\n',
    "tasks/sft.py": (
        "from rlcore.supervised.sft import train\nfrom tasks.run_page.artifacts import show\n"
    ),
    "tasks/run_page/artifacts.py": "def show(): ...\n",
    "rlcore/__init__.py": '"""Core."""\n',
    "rlcore/supervised/sft.py": (
        '"""SFT."""\n\n\ndef train():\n    from rlcore.models import packing\n\n'
        "    return packing.pack()\n"
    ),
    "rlcore/models/__init__.py": '"""Models."""\n',
    "rlcore/models/packing.py": "def pack():\n    return 1\n",
    "rlcore/export/export.py": "X = 1\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def _fingerprint(tree: Path) -> str:
    code_fingerprint.cache_clear()
    return code_fingerprint("tasks.sft", root=tree)


def test_follows_imports_to_any_depth_also_inside_functions(tree: Path) -> None:
    assert code_modules("tasks.sft", root=tree) == [
        "rlcore.models.packing",
        "rlcore.supervised.sft",
        "tasks.sft",
    ]


@pytest.mark.parametrize(
    "name", ["tasks/sft.py", "rlcore/supervised/sft.py", "rlcore/models/packing.py"]
)
def test_changes_with_code_it_reaches(tree: Path, name: str) -> None:
    before = _fingerprint(tree)
    (tree / name).write_text(FILES[name] + "\nEXTRA = 2\n")
    assert _fingerprint(tree) != before, f"a change of {name} would go unseen"


@pytest.mark.parametrize("name", ["rlcore/export/export.py", "tasks/run_page/artifacts.py"])
def test_stays_when_other_code_changes(tree: Path, name: str) -> None:
    before = _fingerprint(tree)
    (tree / name).write_text(FILES[name] + "\nEXTRA = 2\n")
    assert _fingerprint(tree) == before, f"a change of {name} would retrain for nothing"


def test_stays_when_comments_and_docstrings_change(tree: Path) -> None:
    before = _fingerprint(tree)
    text = FILES["rlcore/supervised/sft.py"].replace(
        '"""SFT."""', '"""Warm start."""  # better said'
    )
    (tree / "rlcore/supervised/sft.py").write_text(text)
    assert _fingerprint(tree) == before


def test_foreign_module_is_refused_in_a_sentence(tree: Path) -> None:
    with pytest.raises(UserError, match=r"'tasks\.stf' is no module of flows, tasks"):
        code_fingerprint("tasks.stf", root=tree)


def test_neutral_modules_exist() -> None:
    """A renamed neutral module would join every key unnoticed."""
    for name in NEUTRAL:
        place = ROOT.joinpath(*name.split("."))
        assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file(), name


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


def test_another_thread_may_parse_meanwhile() -> None:
    """CPython fails one of two threads that parse at once; imports in Prefect's threads parse."""

    def let_others_run(phase: str, info: dict[str, int]) -> None:
        del phase, info
        time.sleep(0)

    read_source.cache_clear()
    gc.callbacks.append(let_others_run)
    thresholds = gc.get_threshold()
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(code_fingerprint.__wrapped__, "tasks.sft") for _ in range(6)]
            assert len({one.result() for one in asked}) == 1
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(let_others_run)
