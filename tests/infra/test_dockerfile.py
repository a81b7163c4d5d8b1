"""The Dockerfile: linted, and the lines of its cpu target carried out in an empty tree."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.conftest import DOCKERFILE, IGNORED
from tests.infra.dockerfile import Tree, is_sent, lineage, read

ARGUMENTS, STAGES = read(DOCKERFILE)


def test_hadolint_has_nothing_to_say() -> None:
    command = [Path(sys.executable).with_name("hadolint"), DOCKERFILE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
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


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(1800)
def test_the_lines_of_the_cpu_target_make_an_image_that_plans_a_run(image: Tree) -> None:
    assert image.call("id -u").strip() == "10001"
    assert "quickstart" in image.call("rl-pipeline run quickstart --dry-run")
    image.call("python -c 'import deepspeed, prefect_kubernetes, ray, torch, vllm'")
    image.call("touch /data/runs/a /data/.prefect/b")
    for code in ("/opt/source/pyproject.toml", "/opt/venv/bin/rl-pipeline", "/opt/pins"):
        image.call(f"! test -w {code}")
