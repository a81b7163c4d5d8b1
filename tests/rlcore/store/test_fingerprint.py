"""A cache that does not see a code change serves results of code that is gone."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlcore.store.fingerprint import NEUTRAL, ROOT, code_fingerprint, code_modules
from rlcore.workers.workers import WORKER_MODULES
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
        assert ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file(), name


def test_the_process_that_scores_is_part_of_the_key() -> None:
    """It is started by name, and what it makes of a failing row decides what is learnt."""
    assert "rlcore.rewards.child" in code_modules("flows.rl_loop", *WORKER_MODULES)


def test_another_thread_may_parse_meanwhile() -> None:
    """CPython fails one of two threads that parse at once; imports in Prefect's threads parse."""

    def let_others_run(phase: str, info: dict[str, int]) -> None:
        del phase, info
        time.sleep(0)

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
