"""Code that changed has another version, is marked as one of equal results, or says so in keys."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore.envs.registry import BUILTIN
from rlcore.store import versions
from rlcore.store.fingerprint import path_of, source_of
from rlcore.store.versions import (
    COUNTED,
    NEUTRAL,
    RECORD,
    ROOT,
    VERSIONS,
    Versioned,
    changed_modules,
    code_parts,
    modified_sentences,
    record_versions,
    versioned_code,
    why,
)
from schemas.stages import Stage

LOSS = '"""Losses."""\n\n\ndef loss(x):\n    return -x\n'
FILES = {
    "rlcore/store/versions.json": "{}",
    "pyproject.toml": "",
    "tasks/rl.py": "from rlcore.losses import loss\nfrom rlcore.cluster.ray import where\n",
    "rlcore/losses.py": LOSS,
    "rlcore/cluster/ray.py": "def where(): ...\n",
}
REMEDY = (
    "add a step to its version in rlcore/store/versions.py if results differ, and run make versions"
)


def test_code_that_a_stage_reaches_is_recorded() -> None:
    said = modified_sentences(VERSIONS)
    assert not said, f"{said[0].partition(',')[0]}: {REMEDY}"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout of one stage at version 1, recorded."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    of = {"rl": Versioned(("first",), ("tasks.rl",))}
    monkeypatch.setattr(versions, "VERSIONS", of)
    assert record_versions(tmp_path) == ["rl: version 0 -> 1: first"]
    yield tmp_path
    path_of.cache_clear()
    source_of.cache_clear()
    code_parts.cache_clear()


def edit(root: Path, name: str, text: str) -> str:
    """Write a file; return the version that a new process then sees."""
    (root / name).write_text(text)
    path_of.cache_clear()
    source_of.cache_clear()
    code_parts.cache_clear()
    return code_parts("rl", root)["version"]


def test_a_changed_loss_works_under_keys_of_its_own(root: Path) -> None:
    changed = edit(root, "rlcore/losses.py", LOSS.replace("-x", "x"))
    assert changed.startswith("1+modified.")
    (said,) = modified_sentences(["rl"], root)
    assert said.startswith(
        "rl: rlcore.losses changed since version 1, so its results are kept apart"
    )
    again = edit(root, "rlcore/losses.py", LOSS.replace("-x", "2 * x"))
    assert again not in ("1", changed)
    assert edit(root, "rlcore/losses.py", LOSS) == "1"
    assert modified_sentences(["rl"], root) == []


def test_it_is_recorded_as_one_of_equal_results_or_with_a_raised_version(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(root, "rlcore/losses.py", LOSS.replace("-x", "-1 * x"))
    assert record_versions(root) == ["rl: version 1 is kept, though rlcore.losses changed"]
    assert edit(root, "rlcore/losses.py", LOSS.replace("-x", "-1 * x")) == "1"
    assert record_versions(root) == []
    raised = {"rl": Versioned(("first", "the sign of the loss"), ("tasks.rl",))}
    monkeypatch.setattr(versions, "VERSIONS", raised)
    changed = edit(root, "rlcore/losses.py", LOSS.replace("-x", "x"))
    assert changed.startswith("2+modified."), "raised, but not what it was raised for"
    assert record_versions(root) == ["rl: version 1 -> 2: the sign of the loss"]
    assert edit(root, "rlcore/losses.py", LOSS.replace("-x", "x")) == "2"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rlcore/losses.py", LOSS.replace("Losses.", "What is minimised.") + "# the end\n"),
        ("rlcore/cluster/ray.py", "def where():\n    return 1\n"),
        ("rlcore/other.py", "X = 1\n"),
    ],
)
def test_what_cannot_change_a_result_needs_no_mark(root: Path, name: str, text: str) -> None:
    assert edit(root, name, text) == "1"


def test_an_installed_package_is_as_recorded(root: Path) -> None:
    (root / "pyproject.toml").unlink()
    assert edit(root, "rlcore/losses.py", "X = 1\n") == "1"


def test_a_new_library_is_in_the_key_at_once(root: Path) -> None:
    edit(root, "rlcore/losses.py", "import torch\n" + LOSS)
    parts = code_parts("rl", root)
    assert parts["version"].startswith("1+modified.")
    assert parts["torch"].startswith("torch==")


def test_reasons_are_those_of_the_steps_between(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ("first", "packed rows", "new clip")
    monkeypatch.setattr(versions, "VERSIONS", {"rl": Versioned(steps, VERSIONS["rl"].code)})
    assert why("rl", "1", "3") == "packed rows; new clip"
    assert why("rl", "3", "2") == "new clip", "an older checkout reads a newer store"
    assert why("rl", "2+modified.0123456789ab", "3") == "new clip"
    assert "without its own version" in why("rl", "3+modified.0123456789ab", "3")


def test_modules_that_do_not_count_exist() -> None:
    """A renamed one would join every digest unnoticed."""
    for name in (*NEUTRAL, *COUNTED):
        place = ROOT.joinpath(*name.split("."))
        assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file(), name


def test_whatever_a_run_is_made_of_has_a_version() -> None:
    assert {*Stage, *BUILTIN} <= set(VERSIONS)


def test_workers_are_named_as_they_are_loaded() -> None:
    """Their classes are loaded by a text, which no import shows."""
    texts = [*ROOT.glob("rlcore/engines/registry.py"), ROOT / "rlcore/rl/workers.py"]
    loaded = {
        word.strip('",() ').partition(":")[0]
        for path in texts
        for word in path.read_text().split()
        if word.startswith(('"rlcore.', 'EngineKind("rlcore.'))
    }
    loaded = {name.removeprefix('EngineKind("') for name in loaded}
    assert len(loaded) >= 6
    assert loaded <= set(versioned_code("rl").modules)


def test_the_record_is_what_a_person_can_compare() -> None:
    record = json.loads((ROOT / RECORD).read_text())
    assert {name: one["version"] for name, one in record.items() if name != "modules"} == {
        name: len(entry.steps) for name, entry in VERSIONS.items()
    }
    assert changed_modules("rl") == []
