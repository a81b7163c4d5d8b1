"""`rl.iterations` raised: RL continues where the shorter run ended, or says why it does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.results.run import Run
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.recipe import Recipe
from tasks.runtime.earlier_runs import ACCEPTED, TOTAL, TRAJECTORY, Shorter, earlier_run
from tasks.runtime.keys import KeyParts, StageKeys
from tasks.runtime.stage_keys import Declared
from tests.flows.commands.test_export import cli
from tests.flows.small_run import INLINE, SMALL, artifact_digests, run_small

pytestmark = pytest.mark.timeout(600)
SCHEDULE = "rl.update.optimizer.schedule"
CONSTANT = {**INLINE, f"{SCHEDULE}.kind": "constant", f"{SCHEDULE}.warmup_steps": 2}
RECIPE: Recipe = Recipe.model_construct()


def status(folder: Path, over: dict[str, Any]) -> dict[str, str]:
    words = [word for k, v in (SMALL | over).items() for word in ("-o", f"{k}={json.dumps(v)}")]
    done = cli(folder, "status", "quickstart", *words, "--format", "json")
    assert done.returncode == 0, done.stderr[-3000:]
    return {row["stage"]: row["sentence"] for row in json.loads(done.stdout)}


@pytest.mark.slow
def test_more_iterations_go_on_and_end_as_one_go(prefect_server: str, tmp_path: Path) -> None:
    """100 after 60 began again from 0: 60 iterations were paid for twice."""
    two, one = tmp_path / "two", tmp_path / "one"
    few, more = ({**CONSTANT, "rl.iterations": n} for n in (3, 5))
    assert run_small(two, few).returncode == 0
    first = (two / "runs" / "latest").resolve().name
    began = artifact_digests(two, "rollouts")
    assert status(two, more)["rl"] == "continues at 4 (of a run of 3 iterations)"
    went_on = run_small(two, more)
    assert "continues after iteration 3 of a run of 3 iterations" in went_on.stdout
    assert run_small(one, more).returncode == 0
    assert artifact_digests(two, "policy").items() >= artifact_digests(one, "policy").items()
    assert artifact_digests(two, "rollouts").items() >= began.items()
    assert len(artifact_digests(two, "rollouts")) == 5
    last = Run.open("latest", two / "runs")
    assert last.iterations == [1, 2, 3, 4, 5]
    assert Run.open(first, two / "runs").iterations == [1, 2, 3]
    assert set(status(two, more).values()) == {"cached"}
    again = run_small(two, more)
    assert again.returncode == 0
    assert Run.open("latest", two / "runs").iterations == [1, 2, 3, 4, 5], "found by its records"

    linear = {**INLINE, f"{SCHEDULE}.kind": "linear", f"{SCHEDULE}.warmup_steps": 0}
    assert run_small(two, {**linear, "rl.iterations": 2}).returncode == 0
    said = status(two, {**linear, "rl.iterations": 3})["rl"]
    why = "kind = 'linear') depends on rl.iterations: of 2, iteration 1 had other learning rates"
    assert f"trains from 0 beside a run of 2 iterations: {SCHEDULE} ({why}" in said
    assert why in run_small(two, {**linear, "rl.iterations": 3}).stdout


def left(store: ArtifactStore, run: str, step: int, total: int, *, code: str, **more: Any) -> None:
    folder = Path(store.root).parent / "files"
    folder.mkdir(exist_ok=True)
    (folder / "weights").write_text("w")
    metadata = {TRAJECTORY: "t", TOTAL: total, **more}
    lineage = Lineage("r", code, metadata=metadata)
    store.put("checkpoint", f"{run}/{step:06d}", directory=folder, lineage=lineage)


def test_the_run_with_the_most_steps_that_fit_is_gone_on_with(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")

    def found(
        total: int, key: str = "mine", why: str | None = None
    ) -> tuple[str, str | None] | None:
        stage = Declared("rl", "policy", resumes=lambda recipe, before, done: why)
        keys = StageKeys(key, "i", "now", KeyParts("rl"), {}, trajectory="t", total=total)
        shorter = earlier_run(
            store, stage, keys, RECIPE, 1, is_made=lambda key: False, log=pytest.fail
        )
        assert shorter is None or isinstance(shorter, Shorter)
        return shorter and (shorter.key, shorter.obstacle)

    assert found(100) is None
    left(store, "few", 20, 20, code="now")
    left(store, "many", 60, 60, code="now")
    left(store, "most", 200, 200, code="now")
    left(store, "other", 70, 70, code="before")
    left(store, "accepted", 80, 80, code="now", **{ACCEPTED: {}})
    assert found(100) == ("many", None)
    assert found(30) == ("few", None)
    assert found(100, key="few") is None, "it has checkpoints itself"
    assert found(10) is None
    assert found(75, why="linear") == ("other", "other code made its checkpoints")
    assert found(65, why="linear") == ("many", "linear")
