"""The image of the Dockerfile's cpu target, as a tree of files that is made once."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.infra.dockerfile import Tree, as_root, lineage, read

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "infra" / "Dockerfile"
IGNORED = (ROOT / "infra" / "Dockerfile.dockerignore").read_text().splitlines()[1:]
RELEASE = "bookworm"  # of Debian 12, the default of BASE


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """The file system of the cpu target, made of a bare Debian as its base is."""
    assert shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin"), (
        "apt-get install debootstrap"
    )
    folder = tmp_path_factory.mktemp("image")
    root = folder / "root"
    bare = [*as_root(), "debootstrap", "--variant=minbase", RELEASE, str(root)]
    done = subprocess.run(bare, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    made = Tree(root, *_mounts(folder))
    for stage in lineage(read(DOCKERFILE)[1], "cpu"):
        made.carry_out(stage, ROOT, IGNORED)
    yield made
    subprocess.run([*as_root(), "rm", "-rf", str(root)], check=True)


def _mounts(folder: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return what the build is given of this machine: settings of pip and uv, and uv's cache; and
    what such settings name."""
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
    named = [
        path for value in pip.values() for path in re.findall(r"(?:^|\s|file://)(/\S+)", value)
    ]
    places = [Path("/etc/ssl/certs"), *map(Path, named)]
    found = {str(place): place for place in places if place.exists()}
    return mounts | {"/var/cache/uv": cache}, found


def _said(program: str, *arguments: str) -> str:
    command = [Path(sys.executable).with_name(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
