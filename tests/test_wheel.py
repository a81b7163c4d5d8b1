"""The wheel, installed into an environment without the checkout, works from any folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "tasks", "rlcore", "schemas")
RECIPES = sorted(path.name for path in (ROOT / "flows" / "recipes").glob("*.yaml"))
BUILD = "from setuptools.build_meta import build_wheel; build_wheel('../dist')"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it from a copy: a build leaves folders in its source."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    command = [sys.executable, "-c", BUILD]
    done = subprocess.run(command, cwd=folder / "source", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (built,) = (folder / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """Return the folder of commands of an environment with this wheel and our dependencies.

    These are not installed again, which would take minutes: they are found where the tests' own
    are. A ``.pth`` file of that folder, such as the one of the checkout, has no effect there.
    """
    environment = wheel.parents[1] / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    subprocess.run([*pip, *install], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


def call(folder: Path, *command: str | Path) -> str:
    """Return what a command prints in ``folder``, without the variables of this checkout."""
    mine = ("PYTHON", "PREFECT_", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(mine)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_it_holds_what_runs_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(p.relative_to(ROOT)) for top in PACKAGES for p in (ROOT / top).rglob("*.py")}
    wanted |= {f"flows/recipes/{name}" for name in RECIPES} | {"flows/automations.yaml"}
    templates = (ROOT / "rlcore").glob("*/templates/*")
    wanted |= {str(path.relative_to(ROOT)) for path in templates}
    wanted |= {"rlcore/store/versions.json", "rlcore/verl/keys.yaml"}
    assert {name for name in names if ".dist-info/" not in name} == wanted
    (scripts,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "rl-pipeline = flows.cli:main" in zipfile.ZipFile(wheel).read(scripts).decode()
    assert any(name.endswith("LICENSE") for name in names)


def test_its_dependencies_are_bounded_and_the_pins_are_within(wheel: Path) -> None:
    """Without bounds, the next major release of any of them breaks an installation."""
    lines = (ROOT / "infra" / "constraints.txt").read_text().splitlines()
    pinned = [line.split("==") for line in lines if "==" in line]
    pins = {canonicalize_name(name): Version(version) for name, version in pinned}
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    stated = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
    assert len(stated) > 30
    for text in stated:
        needed = Requirement(text)
        pin = pins[canonicalize_name(needed.name)]
        assert needed.specifier.contains(pin), f"{text}: infra/constraints.txt pins {pin}"
        bounds = {bound.operator: Version(bound.version) for bound in needed.specifier}
        assert set(bounds) == {">=", "<"}, text
        last = Version(f"{pin.major + 1}" if pin.major else f"0.{pin.minor + 1}")
        assert bounds["<"] <= last, f"{text} admits releases that may break"


SHOWN = """
import json
import flows
from flows import local, paths
places_written = [str(paths.ROOT), str(local.HOME), str(local.ENV_FILE)]
recipes = sorted(path.name for path in paths.RECIPES.iterdir())
print(json.dumps([flows.__file__, places_written, paths.AUTOMATIONS.read_text(), recipes]))
"""


@pytest.mark.slow
def test_its_commands_work_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    help_text = call(tmp_path, installed / "rl-pipeline", "--help")
    assert re.search(r"run +run a recipe", help_text)
    listed = call(tmp_path, installed / "rl-pipeline", "recipes", "--format", "json")
    names = {Path(name).stem for name in RECIPES if not name.startswith("_")}
    assert {row["recipe"] for row in json.loads(listed)} == names
    planned = call(tmp_path, installed / "rl-pipeline", "run", "quickstart", "--dry-run")
    assert "quickstart" in planned
    assert list(tmp_path.iterdir()) == []


def test_its_code_is_as_recorded(installed: Path, tmp_path: Path) -> None:
    show = "from rlcore.store.versions import code_parts; print(code_parts('rl')['version'])"
    assert call(tmp_path, installed / "python", "-c", show).strip().isdecimal()


@pytest.mark.slow
def test_what_up_reads_is_installed_and_what_it_writes_is_the_users(
    installed: Path, tmp_path: Path
) -> None:
    """Server, runs and store of an installed package are in the folder that it is used from."""
    shown = call(tmp_path, installed / "python", "-c", SHOWN)
    module, written, automations, recipes = json.loads(shown)
    assert Path(module).is_relative_to(installed.parent)
    assert written == [str(tmp_path / name) for name in ("", ".prefect", ".env")]
    assert automations == (ROOT / "flows" / "automations.yaml").read_text()
    assert recipes == RECIPES
