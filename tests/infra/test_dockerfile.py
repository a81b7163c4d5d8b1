"""The Dockerfile: linted, and the lines of its cpu target carried out in an empty tree."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.infra.dockerfile import Tree, as_root, is_sent, lineage, read

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "infra" / "Dockerfile"
IGNORED = (ROOT / "infra" / "Dockerfile.dockerignore").read_text().splitlines()[1:]
RELEASE = "bookworm"  # of Debian 12, the default of BASE
ARGUMENTS, STAGES = read(DOCKERFILE)


def test_hadolint_has_nothing_to_say() -> None:
    command = [Path(sys.executable).with_name("hadolint"), DOCKERFILE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_base_is_an_argument_and_no_address_is_written_down() -> None:
    text = DOCKERFILE.read_text()
    assert ARGUMENTS == {"BASE": "debian:12-slim"}
    assert {"cpu", "gpu"} < set(STAGES)
    assert STAGES["system"].base == "${BASE}"
    assert not re.search(r"https?://|index-url|docker\.io|ghcr|quay|nvcr", text)
    for name in ("cpu", "gpu"):
        users = [
            rest for s in lineage(STAGES, name) for word, rest in s.instructions if word == "USER"
        ]
        assert users == ["10001"]


def test_every_package_has_its_exact_pin() -> None:
    """Each installation is held to infra/constraints.txt, or takes nothing from anywhere."""
    lines = [rest for s in STAGES.values() for word, rest in s.instructions if word == "RUN"]
    installing = [line for line in lines if "pip install" in line]
    assert len(installing) == 5
    for line in installing:
        assert "--constraint /opt/pins/constraints.txt" in line or "--offline" in line


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("flows/server.py", True),
        ("infra/constraints.txt", True),
        (".env", False),
        (".prefect/password", False),
        (".git/config", False),
        ("runs/store/manifest.json", False),
        ("infra/compose.yaml", False),
        ("flows/__pycache__/server.cpython-311.pyc", False),
    ],
)
def test_what_enters_the_image(name: str, sent: bool) -> None:
    assert is_sent(name, IGNORED) is sent


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """The file system of the cpu target, made from a bare Debian as its base is."""
    assert shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin"), (
        "apt-get install debootstrap"
    )
    folder = tmp_path_factory.mktemp("image")
    root = folder / "root"
    bare = [*as_root(), "debootstrap", "--variant=minbase", RELEASE, str(root)]
    done = subprocess.run(bare, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    made = Tree(root, *_mounts(folder))
    yield made
    subprocess.run([*as_root(), "rm", "-rf", str(root)], check=True)


def _mounts(folder: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return what the build is given of this machine: settings of pip and uv, and uv's cache; and
    the folders that such settings name."""
    listed = _said("python", "-m", "pip", "config", "list")
    pip = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    parser = ConfigParser(interpolation=None)
    parser["global"] = pip
    with (folder / "pip.conf").open("w") as file:
        parser.write(file)
    links = pip.get("find-links", "").split()
    (folder / "uv.toml").write_text(f"find-links = {links}\nnative-tls = true\n")
    cache = Path(_said("uv", "cache", "dir").strip())
    cache.mkdir(parents=True, exist_ok=True)
    mounts = {"/etc/pip.conf": folder / "pip.conf", "/etc/uv/uv.toml": folder / "uv.toml"}
    named = [*links, *re.findall(r"file://(/\S+)", pip.get("extra-index-url", ""))]
    places = [Path("/etc/ssl/certs"), *map(Path, named)]
    found = {str(place): place for place in places if place.is_dir()}
    return mounts | {"/var/cache/uv": cache}, found


def _said(program: str, *arguments: str) -> str:
    command = [Path(sys.executable).with_name(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_lines_of_the_cpu_target_make_an_image_that_plans_a_run(tree: Tree) -> None:
    for stage in lineage(STAGES, "cpu"):
        tree.carry_out(stage, ROOT, IGNORED)
    assert tree.call("id -u").strip() == "10001"
    assert "quickstart" in tree.call("rl-pipeline run quickstart --dry-run")
    tree.call("python -c 'import deepspeed, prefect_kubernetes, ray, torch, vllm'")
    tree.call("touch /data/runs/a /data/.prefect/b")
    for code in ("/opt/source/pyproject.toml", "/opt/venv/bin/rl-pipeline", "/opt/pins"):
        tree.call(f"! test -w {code}")
