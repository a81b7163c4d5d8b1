"""``rl-pipeline ask``: answers about the run that was asked for, and the SQL to build on."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import yaml

from flows.cli import main
from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.results.metrics import metrics_frame
from rlcore.results.provenance import record_recipe
from rlcore.results.questions import QUESTIONS
from rlcore.results.run import record_stage
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from tests.rlcore.results.records import stage_record
from tests.rlcore.results.test_queries import rewards, rollouts

LINEAGE = Lineage("r", "c")
RUNS = ("a-00000001", "a-00000002")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs that differ in one key, in their rewards and in nothing else."""
    monkeypatch.chdir(tmp_path)
    store = ArtifactStore(tmp_path / "runs" / "store")
    for name, key, score in zip(RUNS, ("k1", "k2"), (1.0, 0.25), strict=True):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        recipe = {"name": "a", "rl": {"iterations": int(key[1]), "groups": [{"size": 4}]}}
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        record_stage(store, stage_record(name, "rl", kind="policy", key=key), LINEAGE)
        made = store.put(
            "rollouts", f"{key}/000001", tables={"rollouts": rollouts(3)}, lineage=LINEAGE
        )
        store.put(
            "rewards",
            f"{key}/000001",
            tables={"rewards": rewards(3, score)},
            lineage=Lineage("r", "c", {"rollouts": made}),
        )
    return tmp_path


@pytest.mark.slow
def test_one_run_is_asked_and_the_sql_gives_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, score in zip(RUNS, (1.0, 0.25), strict=True):
        assert main(["ask", "length-against-reward", run, "--format", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row["score"] for row in rows] == [score] * 3
        assert main(["ask", "length-against-reward", run, "--sql"]) == 0
        statement = capsys.readouterr().out
        assert main(["sql", statement, "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == rows


def test_reward_by_run_is_one_join(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statement = "select run, avg(score) as s from trajectories join runs using (records_key)"
    assert main(["sql", f"{statement} group by all order by all", "--format", "csv"]) == 0
    assert capsys.readouterr().out == f"run,s\n{RUNS[0]},1.0\n{RUNS[1]},0.25\n"


def test_a_longer_run_that_went_on_adds_nothing_to_the_shorter_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both have the records of one key: 60 iterations had the mean reward of 100."""
    store = ArtifactStore(folder / "runs" / "store")
    for name, planned in (("b-00000003", 1), ("b-00000004", 2)):
        recipe = load_recipe("quickstart", {"rl.iterations": planned}, directory=RECIPES)
        digest = record_recipe(store, recipe, LINEAGE).key
        record = stage_record(name, "rl", kind="policy", key="shared")
        record_stage(store, replace(record, recipe_digest=digest), LINEAGE)
    for step, score in ((1, 0.0), (2, 1.0)):
        key, number = f"shared/{step:06d}", pl.lit(step, pl.Int32)
        frames = {
            "rollouts": rollouts(3).with_columns(iteration=number),
            "rewards": rewards(3, score),
            "metrics": metrics_frame("rl", step, {"timing_s/step": 1.0}),
        }
        parents: dict[str, ArtifactRef] = {}
        for kind, frame in frames.items():
            made = store.put(kind, key, tables={kind: frame}, lineage=Lineage("r", "c", parents))
            parents = {"rollouts": made} if kind == "rollouts" else {}
    statement = """select run, r.iterations, r.planned, avg(score) as s from trajectories t join
        runs r on t.records_key = r.records_key and t.iteration <= r.planned
        where starts_with(run, 'b') group by all order by run"""
    assert main(["sql", statement, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["b-00000003,1,1,0.0", "b-00000004,2,2,0.5"]
    for question, found in (("length-against-reward", [0.0] * 3), ("slowest", [None])):
        assert main(["ask", question, "b-00000003", "--format", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row.get("score") for row in rows] == found


REFUSED = {
    "findings": "lacks the table diagnostics, which the stage rl writes",
    "never-rewarded": "lacks the table prompts, which the stage prepare_data writes",
    "skipped": "lacks the table advantages, which the stage rl writes",
    "findins": "is not a question; did you mean 'findings'",
    "changed": "is not a question",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_answered_ends_in_a_sentence(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", name, RUNS[0]]) == 2
    said = capsys.readouterr().err
    assert REFUSED[name] in said
    assert said.count("\n") == 1


def test_an_unknown_run_names_the_nearest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "hacking", "a-0000001"]) == 2
    assert f"did you mean '{RUNS[0]}'" in capsys.readouterr().err


def test_every_question_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in QUESTIONS)
