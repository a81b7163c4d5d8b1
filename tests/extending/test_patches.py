"""What it takes to add one of each kind: a patch that adds one, applied to a copy of this tree.

A patch holds what a contributor writes, its tests among it; what `make docs` writes is left out. To
renew one after a refactoring, apply it with ``git apply --reject``, finish it by hand, and write
``git diff -U1`` over it.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
# Kind -> how many files that exist already one may touch, and its part of CONTRIBUTING.md.
KINDS = {
    "kl_estimator": (2, "A KL estimator."),
    "engine": (3, "A rollout engine."),
    "artifact_kind": (2, "A table"),
    "phase": (4, "A phase."),
    "environment": (2, "An environment."),
}
pytestmark = pytest.mark.timeout(240)


def patch(kind: str) -> str:
    return (HERE / f"{kind}.patch").read_text(encoding="utf-8")


def changed(text: str) -> list[str]:
    """Return the files that exist before a patch and that it changes or removes."""
    return re.findall(r"^--- a/(.+)$", text, re.MULTILINE)


def added(text: str) -> list[str]:
    return re.findall(r"^--- /dev/null\n\+\+\+ b/(.+)$", text, re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS)
def test_it_touches_few_files_and_contributing_names_them(kind: str) -> None:
    most, title = KINDS[kind]
    files = changed(patch(kind))
    assert len(files) <= most, files
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = guide.split(f"**{title}", 1)[1].split("\n\n**", 1)[0]
    for file in files:
        assert file in section or file.removeprefix("rlcore/") in section, file


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree with all patches applied."""
    copy = tmp_path_factory.mktemp("extended")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    for kind in KINDS:
        applied = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"],
            input=patch(kind),
            cwd=copy,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)},
            capture_output=True,
            text=True,
        )
        assert applied.returncode == 0, f"{kind}.patch no longer applies:\n{applied.stderr}"
    return copy


def test_each_of_them_applies(extended: Path) -> None:
    for kind in KINDS:
        assert all((extended / file).is_file() for file in added(patch(kind))), kind


@pytest.mark.slow
def test_each_of_them_works(extended: Path) -> None:
    """The tests that the patches bring pass, and so do those of the tree's own shape."""
    tests = [file for kind in KINDS for file in added(patch(kind)) if "/test_" in file]
    assert len(tests) == len(KINDS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests],
        cwd=extended,
        env={**os.environ, "PYTHONPATH": str(extended)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert f"{len(tests) + 2} passed" in run.stdout, run.stdout[-500:]
