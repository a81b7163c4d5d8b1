"""A run is found by name, with what it has come to, also while it is under way."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.results.run import Run, record_stage
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from schemas.errors import UserError
from tests.rlcore.results.evaluated import completions, make_run
from tests.rlcore.results.records import stage_record

NAME = "quickstart-0123abcd"
MADE = Lineage("r", "c")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The folder of one run that is in its stage sft, and of a store."""
    folder = tmp_path / "runs" / NAME
    folder.mkdir(parents=True)
    recipe = load_recipe("quickstart", {}, directory=RECIPES)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    store = ArtifactStore(tmp_path / "runs" / "store")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("w")
    base = store.put("base_model", "b", directory=tmp_path / "model", lineage=MADE)
    first = stage_record(NAME, "base_model", kind="base_model", key="b", sha256=base.sha256)
    record_stage(store, first, MADE)
    second = replace(stage_record(NAME, "sft", kind="policy", key="p"), began="2026-01-02")
    record_stage(store, second, MADE)
    other = stage_record("quickstart-99999999", "rl", kind="policy", key="q")
    record_stage(store, other, MADE)
    return tmp_path / "runs"


def test_stages_of_a_run_that_goes_on(runs: Path) -> None:
    run = Run.open("latest", runs)
    assert list(run.stages) == ["base_model", "sft"]
    result = run.result("base_model")
    assert result is not None
    assert result.key == "b"
    assert run.result("sft") is None
    assert run.records("sft") == "p"
    assert run.metrics("sft").height == 0
    with pytest.raises(UserError, match=r"has not come to the stage rl; it has base_model, sft"):
        run.records("rl")


def test_a_stage_that_is_begun_again_has_one_row(runs: Path) -> None:
    store = ArtifactStore(runs / "store")
    again = replace(stage_record(NAME, "sft", kind="policy", key="r"), began="2026-01-03")
    record_stage(store, again, MADE)
    run = Run.open(NAME, runs)
    assert run.records("sft") == "r"


@pytest.mark.parametrize("store", ["~/rl-store", "file://HOME/rl-store"])
def test_a_store_is_found_where_its_run_wrote_it(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    recipe = yaml.safe_load((runs / NAME / "recipe.yaml").read_text())
    recipe["store"] = store.replace("HOME", str(home))
    (runs / NAME / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    written = ArtifactStore(recipe["store"])
    record_stage(written, stage_record(NAME, "sft", kind="policy", key="home"), MADE)
    run = Run.open(NAME, runs)
    assert run.store.root == written.root == run.recipe.store == str(home / "rl-store")
    assert run.records("sft") == "home"


def test_an_unknown_run_is_answered_with_the_nearest(runs: Path) -> None:
    with pytest.raises(UserError, match=f"no run 'quickstart-0123abce' .*mean '{NAME}'"):
        Run.open("quickstart-0123abce", runs)


def test_a_run_without_records_says_what_to_do(runs: Path) -> None:
    old = runs / "quickstart-55555555"
    old.mkdir()
    (old / "recipe.yaml").write_text((runs / NAME / "recipe.yaml").read_text())
    with pytest.raises(UserError, match=r"no stage recorded .* run its recipe again"):
        _ = Run.open(old.name, runs).stages


def test_an_evaluation_is_read_with_the_answers_behind_it(tmp_path: Path) -> None:
    drawn, figures = completions({"a": True, "b": False})
    make_run(tmp_path / "runs", NAME, evaluation=(drawn, figures))
    run = Run.open(NAME, tmp_path / "runs")
    assert run.evaluation().equals(figures)
    assert run.completions().equals(drawn)


def test_what_a_run_has_not_come_to_is_said_in_a_sentence(runs: Path) -> None:
    run = Run.open(NAME, runs)
    with pytest.raises(UserError, match=r"has not ended the stage evaluate; .* base_model, sft; "):
        run.evaluation()
    with pytest.raises(UserError, match="not come to the stage rl; it has base_model, sft"):
        run.trajectories()
    row = replace(stage_record(NAME, "rl", kind="policy", key="p"), began="2026-01-03")
    record_stage(ArtifactStore(runs / "store"), row, MADE)
    run = Run.open(NAME, runs)
    assert run.iterations == []
    assert run.trajectories().height == 0
    assert {"response", "score", "advantages", "kept"} <= set(run.trajectories().columns)
    with pytest.raises(UserError, match="no rollouts of iteration 1; it has none yet"):
        run.rollouts(1)


def test_damage_is_not_read(tmp_path: Path) -> None:
    drawn, figures = completions({"a": True})
    make_run(tmp_path / "runs", NAME, evaluation=(drawn, figures))
    (file,) = (tmp_path / "runs" / "store").rglob("completions.parquet")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ArtifactError):
        Run.open(NAME, tmp_path / "runs").completions()
