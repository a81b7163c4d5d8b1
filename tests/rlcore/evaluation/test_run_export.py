"""The model of any iteration of a run, also without a checkpoint, is the recorded one."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from rlcore.evaluation.run_export import export_run
from rlcore.recipes.text import write_yaml
from rlcore.results.lineage import trace
from rlcore.results.named_artifacts import subject
from rlcore.results.run import Run, StageRecord, record_stage
from rlcore.rl.phases import Phases
from rlcore.rl.replay import CreditError
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.errors import UserError
from tests.rlcore.rl.conftest import Dataset, dataset, make_phases
from tests.rlcore.rl.test_replay import ITERATIONS, changed_reward, trained

__all__ = ["dataset", "make_phases"]  # fixtures
pytestmark = pytest.mark.timeout(180)
Make = Callable[..., Phases]
NAME = "quickstart-0123abcd"


def as_run(phases: Phases, runs: Path) -> Run:
    """Record what ``phases`` has trained as a run whose RL has not ended; return that."""
    row = StageRecord(
        flow_run_id="0123abcd-1",
        run=NAME,
        recipe="quickstart",
        recipe_digest="r",
        seed=0,
        overrides="{}",
        stage="rl",
        result_kind="policy",
        result_key="run",
        records_key="run",
        sha256=None,
        cached=None,
        began=datetime.now(UTC).isoformat(),
        seconds=None,
    )
    record_stage(phases.store, row, Lineage("recipe", "code"))
    folder = runs / NAME
    folder.mkdir(parents=True)
    recipe = phases.recipe.model_copy(update={"store": phases.store.root})
    (folder / "recipe.yaml").write_text(write_yaml(recipe.model_dump(mode="json")))
    return Run(folder, recipe, phases.store)


@pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.slow)])
def test_an_iteration_without_a_checkpoint_is_exported_with_its_lineage(
    place: str, make_phases: Make, dataset: Dataset, tmp_path: Path, bucket: str
) -> None:
    store = ArtifactStore(bucket if place == "s3" else tmp_path / "store", tmp_path / "cache")
    phases, digests = trained(make_phases, dataset, store, "grpo")
    run, out, lines = as_run(phases, tmp_path / "runs"), tmp_path / "model", list[str]()
    done = export_run(run, iteration=2, out=out, log=lines.append)
    assert (done.weights, done.evaluated) == (digests[2], False)
    assert any("replay starts from the policy that RL began with" in line for line in lines)
    card = (out / "README.md").read_text()
    assert "Not evaluated." in card
    assert f"2 of {ITERATIONS}" in card
    behind = trace(*subject(str(out), store.root, tmp_path / "runs"))
    assert not behind.problems
    keys = {node.name for node in behind.nodes}
    assert {"iterations/run/000002", "rollouts/run/000001", "dataset/d", "base_model/b"} <= keys
    assert "rollouts/run/000003" not in keys
    with pytest.raises(UserError, match="holds something already; give a new or empty directory"):
        export_run(run, iteration=1, out=out, log=print)
    with pytest.raises(UserError, match=r"cannot be put in place: .*README.md' is no folder"):
        export_run(run, iteration=1, out=out / "README.md" / "model", log=print)
    assert AutoModelForCausalLM.from_pretrained(out).num_parameters() > 0

    newest = export_run(run, log=lines.append)
    assert (newest.iteration, newest.weights) == (ITERATIONS, digests[ITERATIONS])
    assert newest.directory == run.folder / "exports" / f"iteration-{ITERATIONS:06d}"


@pytest.mark.slow
def test_an_adapter_lies_beside_its_model_and_nowhere_else(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    """It stayed in the store, where the next export failed and one of another run took it."""
    phases, digests = trained(make_phases, dataset, ArtifactStore(tmp_path / "store"), "adapter")
    run = as_run(phases, tmp_path / "runs")
    for iteration in (1, 2):
        out = tmp_path / f"model-{iteration}"
        assert (
            export_run(run, iteration=iteration, out=out, log=print).weights == digests[iteration]
        )
        assert (out / "adapter" / "adapter_config.json").is_file()
    assert not list((tmp_path / "store" / ".staging").iterdir())


@pytest.mark.slow
def test_what_cannot_be_exported_is_one_sentence_and_leaves_nothing(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    phases, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "store"), "grpo")
    run, out = as_run(phases, tmp_path / "runs"), tmp_path / "model"
    with pytest.raises(UserError, match=f"has no iteration 9; it has 0 to {ITERATIONS}"):
        export_run(run, iteration=9, out=out, log=print)
    changed_reward(phases, 2, hidden=True)
    with pytest.raises(CreditError, match=r"iteration 2 .* advantages of trajectory"):
        export_run(run, iteration=2, out=out, log=print)
    assert not out.exists()


@pytest.mark.slow
def test_weights_that_were_changed_after_the_export_have_no_lineage(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    phases, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "store"), "grpo")
    run = as_run(phases, tmp_path / "runs")
    out = export_run(run, iteration=1, out=tmp_path / "model", log=print).directory
    with (out / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    with pytest.raises(UserError, match="they were changed, or made in another store"):
        subject(str(out), phases.store.root, tmp_path / "runs")
