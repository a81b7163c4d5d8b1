"""`rl-pipeline rerun` makes one stage of a run again, and what it reads stays as it was."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

from flows.cli import main
from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.recipes.text import write_yaml
from tests.flows.small_run import INLINE, ROOT, SMALL, artifact_digests, run_small, summary_of

pytestmark = pytest.mark.timeout(600)
FEW = {**INLINE, "sft.max_steps": 2, "rl.iterations": 1}
SCHEMAS = ROOT / "docs" / "schemas"


def cli(folder: Path, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *words, "--format", "json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check_schema(printed: Any, command: str) -> None:
    """Raise jsonschema.ValidationError where ``command`` is not to print that."""
    own = f"{command}.schema.json"
    read = {name: json.loads((SCHEMAS / name).read_text()) for name in (own, "run.schema.json")}
    registry = Registry().with_resources(
        (name, Resource.from_contents(schema)) for name, schema in read.items()
    )
    jsonschema.Draft202012Validator(read[own], registry=registry).validate(printed)


@pytest.mark.slow
def test_one_stage_is_made_anew_and_equal_results_leave_the_rest_cached(
    prefect_server: str, tmp_path: Path
) -> None:
    assert run_small(tmp_path, FEW).returncode == 0
    first = summary_of(tmp_path)
    again = cli(tmp_path, "rerun", "latest", "--from", "sft", "--until", "rl")
    check_schema(again, "rerun")
    with pytest.raises(jsonschema.ValidationError):
        check_schema({**again, "seed": "zero"}, "rerun")
    assert again["cached"] == ["base_model", "prepare_data", "rl"]
    assert again["artifacts"]["sft"] == f"{first['artifacts']['sft']}.2"
    assert again["artifacts"]["rl"] == first["artifacts"]["rl"]
    assert (again["until"], again["export"]) == ("rl", None)
    assert Path(first["artifacts"]["sft"]).is_dir()
    before = artifact_digests(tmp_path, "rollouts")
    refreshed = cli(tmp_path, "rerun", "latest", "--from", "rl", "--until", "export")
    made = artifact_digests(tmp_path, "rollouts")
    assert refreshed["cached"] == ["base_model", "prepare_data", "sft", "evaluate", "export"]
    assert refreshed["artifacts"]["rl"] == f"{first['artifacts']['rl']}.2"
    assert refreshed["artifacts"]["export"] == first["artifacts"]["export"]
    assert made | before == made, "those of the first result stay"
    assert len(made) == 2 * len(before), "the second has its own"
    assert sorted(made.values()) == sorted(2 * list(before.values()))
    words = [word for k, v in (SMALL | FEW).items() for word in ("-o", f"{k}={json.dumps(v)}")]
    assert {row["state"] for row in cli(tmp_path, "status", "quickstart", *words)} == {"cached"}


def test_a_run_or_stage_that_is_not_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "quickstart-0123abcd"
    folder.mkdir(parents=True)
    recipe = load_recipe("quickstart", directory=RECIPES)
    (folder / "recipe.yaml").write_text(write_yaml(recipe.model_dump(mode="json")))
    assert main(["rerun", "quickstrat-0123abcd", "--from", "rl"]) == 2
    assert main(["rerun", "latest", "--from", "reward_model"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "did you mean 'quickstart-0123abcd'" in errors[0]
    assert errors[1].startswith("error: --from = 'reward_model' is no stage of recipe 'quickstart'")
    assert "as reward_model = null; it has base_model" in errors[1]
    assert errors[1].endswith("evaluate, export; name one of these")
