"""Recipes and stores of released versions are read by this one, and what they hold is still valid.

A folder per version, written by ``python -m tests.released``: ``recipes`` as they were shipped,
``keys.json`` with the digest of what each stage's key has of them, and ``store.tar.gz``, the store
of a small run.
"""

import json
import tarfile
from pathlib import Path

import pytest

from flows.cli import main
from rlcore.recipes.load import load_recipe
from tests.released.__main__ import keys_of

HERE = Path(__file__).parent
VERSIONS = sorted(folder.name for folder in HERE.iterdir() if (folder / "keys.json").is_file())
RECIPES = [
    (version, file.stem)
    for version in VERSIONS
    for file in sorted((HERE / version / "recipes").glob("[!_]*.yaml"))
]


@pytest.mark.parametrize(("version", "name"), RECIPES)
def test_a_recipe_means_what_it_meant(version: str, name: str) -> None:
    """Another part of a key, and every result of the recipe would be made again."""
    recipe = load_recipe(name, directory=HERE / version / "recipes")
    assert (
        keys_of(recipe)
        == json.loads((HERE / version / "keys.json").read_text(encoding="utf-8"))[name]
    )


@pytest.fixture(params=VERSIONS)
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the store of a version, and its run as the latest."""
    with tarfile.open(HERE / request.param / "store.tar.gz") as archive:
        archive.extractall(tmp_path)  # it is ours; Python 3.11.2 has no filters
    (run,) = (tmp_path / "runs").glob("quickstart-*")
    (tmp_path / "runs" / "latest").symlink_to(run.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_its_artifacts_are_whole_and_linked(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "store", "verify")
    nodes = json.loads(said(capsys, "lineage", "latest", "--format", "json"))["artifacts"]
    assert {"base_model", "dataset", "policy", "export"} <= {node["kind"] for node in nodes}
    assert not [node for node in nodes if node["problem"]]


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) as n from rollouts having n > 0",
        "select max(iteration) as n from iterations having n = 4",
        "select count(*) as n from metrics where value is not null having n > 0",
        "select count(*) as n from restarts having n = 0",
    ],
)
def test_its_tables_are_read(home: Path, query: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(json.loads(said(capsys, "sql", query, "--format", "json"))) == 1


def test_its_results_are_used_again_or_a_version_says_why_not(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "quickstart" in said(capsys, "runs")
    stages = json.loads(said(capsys, "status", "runs/latest/recipe.yaml", "--format", "json"))
    assert [stage["stage"] for stage in stages][:3] == ["base_model", "prepare_data", "sft"]
    for stage in stages:
        causes = {cause["what"] for cause in stage["causes"]}
        assert stage["state"] in ("cached", "may run") or causes <= {"version", "parent"}, stage
