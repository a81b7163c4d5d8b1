"""A stage whose workers are lost continues within its run, as often as that brings it further."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from rlcore.cluster.types import WorkerDied, WorkerError, WorkerHung, WorkerTimeout
from rlcore.learner.checkpoints import KIND
from rlcore.learner.pool import LearnerOutOfMemory
from rlcore.plan.batches import smaller_passes
from rlcore.results.provenance import MICRO_BATCH_TOKENS, RESHARDED
from rlcore.results.stage_rows import RestartRecord, restarts_of
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.recipe import Recipe
from tasks.run_page.tracking import Tracker
from tasks.runtime import restarts
from tasks.runtime.caching import CachedStage, StageRun
from tasks.runtime.stage_keys import Declared
from tasks.runtime.stage_run import PipelineRun, flow_run_id

pytestmark = pytest.mark.timeout(120)
DIED = WorkerDied("worker 'learner-0' died during update: Ray says\n  much more; rerun the flow")
Body = Callable[[StageRun, int], None]  # the run, and which call of the body this is, from 1


class Staged:
    """A stage whose body does ``body`` and then writes a file; ``calls`` counts."""

    def __init__(self, folder: Path, body: Body) -> None:
        self.folder, self.body, self.calls = folder, body, 0
        self.rows: list[RestartRecord] = []

    def __call__(self, run: StageRun) -> ArtifactRef:
        self.calls += 1
        self.body(run, self.calls)
        made = self.folder / "made"
        made.mkdir()
        (made / "text.txt").write_text("made")
        return run.put(directory=made)

    def run(self, **hardware: Any) -> ArtifactRef:
        """Run the stage in a flow of its own; raise what it raises."""
        tree: dict[str, Any] = {
            "name": "test",
            "store": str(self.folder / "store"),
            "model": {"path": "some/model", "dtype": "float32"},
            "data": {"sources": [{"kind": "gsm8k"}]},
            "reward": {"functions": [{"name": "gsm8k"}]},
            "hardware": {"cluster": "in_process", **hardware},
        }
        recipe = Recipe.model_validate(tree)
        declared_as = Declared("sft", "policy")
        stage = CachedStage(self, declared_as)

        @flow(name="restarts-test")
        def whole() -> ArtifactRef:
            tracker = Tracker(None, warn=print)
            pipeline = PipelineRun(recipe, self.folder, workers=Workers(recipe), tracker=tracker)
            try:
                return stage(pipeline)
            finally:
                self.rows = restarts_of(pipeline.store, flow_run_id(), "sft")

        return whole()


def checkpoint(run: StageRun, step: int) -> None:
    """Publish the checkpoint of a step."""
    folder = Path(run.store.root).parent / f"step-{step}"
    folder.mkdir()
    (folder / "state").write_text(str(step))
    run.store.put(KIND, f"{run.key}/{step:06d}", directory=folder, lineage=run.lineage())


def dies_until(last: int, error: WorkerError = DIED) -> Body:
    def body(run: StageRun, call: int) -> None:
        if call < last:
            raise error

    return body


@pytest.mark.parametrize("kind", [WorkerDied, WorkerHung, WorkerTimeout])
def test_a_stage_whose_worker_is_lost_goes_on(
    prefect_server: str, tmp_path: Path, kind: type[WorkerError], caplog: pytest.LogCaptureFixture
) -> None:
    staged = Staged(tmp_path, dies_until(3, kind("worker 'learner-0' is lost\nin detail")))
    with caplog.at_level(logging.WARNING):
        assert staged.run().kind == "policy"
    assert staged.calls == 3
    said = "sft begins again with new workers (restart 2, 2 of 2 without a new checkpoint): worker"
    assert f"{said} 'learner-0' is lost" in caplog.messages
    assert [(row.number, row.step, row.cause, row.remedy) for row in staged.rows] == [
        (number, None, "worker 'learner-0' is lost", "new workers") for number in (1, 2)
    ]


def test_restarts_in_vain_end_the_run_and_are_counted(prefect_server: str, tmp_path: Path) -> None:
    staged = Staged(tmp_path, dies_until(9))
    with pytest.raises(WorkerDied) as raised:
        staged.run()
    assert staged.calls == 3
    assert str(raised.value) == (
        f"{DIED}; 2 restarts in a row brought no new checkpoint (hardware.restarts)"
    )


def test_a_new_checkpoint_starts_the_count_anew(prefect_server: str, tmp_path: Path) -> None:
    """An engine that dies every third iteration costs minutes, and never the run."""

    def body(run: StageRun, call: int) -> None:
        if call < 7:
            checkpoint(run, 10 * call)
            raise DIED

    staged = Staged(tmp_path, body)
    staged.run(restarts=1)
    assert staged.calls == 7
    assert [row.step for row in staged.rows] == [10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize(
    "error",
    [
        UserError("sft.epochs = 0 must be > 0; raise it"),
        RuntimeError("a bug in a call"),
        WorkerDied("worker 'learner-0' died: the node was running low on memory"),
    ],
)
def test_what_new_workers_do_not_mend_passes_at_once(
    prefect_server: str, tmp_path: Path, error: Exception
) -> None:
    def body(run: StageRun, call: int) -> None:
        raise error

    staged = Staged(tmp_path, body)
    with pytest.raises(Exception, match=r".") as raised:
        staged.run()
    assert staged.calls == 1
    assert error in (raised.value, raised.value.__cause__)  # what ran out of memory is explained
    assert staged.rows == []


def test_without_restarts_the_error_is_the_workers_own(prefect_server: str, tmp_path: Path) -> None:
    staged = Staged(tmp_path, dies_until(2))
    with pytest.raises(WorkerDied) as raised:
        staged.run(restarts=0)
    assert raised.value is DIED
    assert staged.calls == 1


def test_the_cost_is_what_was_lost_until_the_stage_was_further(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of a second: three are done once more, after a restart of half a minute."""
    clock = {"now": 1000.0}
    monkeypatch.setattr(restarts, "monotonic", lambda: clock["now"])

    def body(run: StageRun, call: int) -> None:
        for step in range(1 if call == 1 else 3, 9):
            clock["now"] += 1.0
            run.tracker.log({"timing_s/step": 1.0}, step=step, stage="rl")
            if (call, step) == (1, 5):
                clock["now"] += 20.0  # until it was noticed
                raise DIED
        clock["now"] += 7.0

    def restart(workers: Workers) -> None:
        clock["now"] += 30.0

    monkeypatch.setattr(Workers, "restart", restart)
    staged = Staged(tmp_path, body)
    staged.run()
    assert [row.seconds for row in staged.rows] == [pytest.approx(20.0 + 30.0 + 3.0)]


def test_what_is_lost_of_a_stage_without_steps(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"now": 0.0}
    monkeypatch.setattr(restarts, "monotonic", lambda: clock["now"])

    def body(run: StageRun, call: int) -> None:
        clock["now"] += 40.0
        if call < 3:
            raise DIED

    staged = Staged(tmp_path, body)
    staged.run()
    assert [row.seconds for row in staged.rows] == [40.0, 40.0]


def budget(run: StageRun) -> int:
    """The tokens per pass of the learners that the body would build."""
    assert run.workers.recipe == run.recipe
    return run.recipe.hardware.learner.micro_batch_tokens


SMALLER = {"learner": {"micro_batch_tokens": 4096}}
FULL = LearnerOutOfMemory("memory ran out in the learner's update: cannot allocate memory")


def test_a_learner_without_memory_goes_on_with_half_the_tokens_a_pass(
    prefect_server: str, tmp_path: Path
) -> None:
    """Also where no restart brings a checkpoint: halves are few."""
    seen: list[int] = []

    def body(run: StageRun, call: int) -> None:
        seen.append(budget(run))
        if call == 2:
            checkpoint(run, 3)
        if call < 3:
            raise FULL

    staged = Staged(tmp_path, body)
    ref = staged.run(restarts=1, **SMALLER)
    assert seen == [4096, 2048, 1024]
    remedy = "hardware.learner.micro_batch_tokens = {} instead of {}"
    assert [(row.step, row.cause, row.remedy) for row in staged.rows] == [
        (None, str(FULL), remedy.format(2048, 4096)),
        (3, str(FULL), remedy.format(1024, 2048)),
    ]
    store = ArtifactStore(tmp_path / "store")
    says = {m.kind: m.metadata.get(MICRO_BATCH_TOKENS) for m in store.manifests()}
    assert says[KIND] == {"recipe": 4096, "used": 2048}
    assert says["policy"] == {"recipe": 4096, "used": 1024}
    assert store.manifest(ref).recipe_digest in store.keys("recipe"), "the recipe as written"


def test_a_rerun_has_the_passes_that_led_to_its_checkpoint(
    prefect_server: str, tmp_path: Path
) -> None:
    """Else it would run out of memory once more, and round differently until then."""
    seen: list[int] = []

    def body(run: StageRun, call: int) -> None:
        seen.append(budget(run))
        if call == 1:
            raise FULL
        if call == 2:
            checkpoint(run, 3)
            raise RuntimeError("killed")

    staged = Staged(tmp_path, body)
    with pytest.raises(RuntimeError, match="killed"):
        staged.run(**SMALLER)
    staged.run(**SMALLER)
    assert seen == [4096, 2048, 2048]


def test_the_recipes_own_figure_holds_once_it_was_changed(
    prefect_server: str, tmp_path: Path
) -> None:
    seen: list[int] = []

    def body(run: StageRun, call: int) -> None:
        seen.append(budget(run))
        if call == 1:
            raise FULL
        if call == 2:
            checkpoint(run, 3)
            raise RuntimeError("killed")

    staged = Staged(tmp_path, body)
    with pytest.raises(RuntimeError, match="killed"):
        staged.run(**SMALLER)
    staged.run(learner={"micro_batch_tokens": 3000})
    assert seen == [4096, 2048, 3000]


TWO = {"ranks": 2, "zero_stage": 1}


@pytest.mark.parametrize(
    ("learner", "layout", "text"),
    [
        ({"ranks": 1}, {"ranks": 1, "zero_stage": 0}, "1 rank (ZeRO 0)"),
        (
            {"ranks": 2, "sequence_parallel": 2},
            {**TWO, "sequence_parallel": 2},
            "2 ranks (ZeRO 1, sequences over 2)",
        ),
    ],
)
def test_other_ranks_than_the_checkpoints_are_recorded_once(
    prefect_server: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    learner: dict[str, int],
    layout: dict[str, int],
    text: str,
) -> None:
    """In the run that changes them; lineage says it of all that is made from then on."""

    def body(run: StageRun, call: int) -> None:
        if call < 4:
            folder = tmp_path / f"step-{call}"
            folder.mkdir()
            (folder / "state").write_text(str(call))
            key = f"{run.key}/{call:06d}"
            run.store.put(KIND, key, directory=folder, lineage=run.resumable())
            raise RuntimeError("killed")

    staged = Staged(tmp_path, body)
    rows = []
    ray = {"cluster": "ray"}
    for given in ({"ranks": 2}, learner, learner):
        with pytest.raises(RuntimeError, match="killed"):
            staged.run(learner=given, device="cpu", **ray)
        rows += staged.rows
    ref = staged.run(learner=learner, device="cpu", **ray)
    assert not staged.rows
    cause = f"hardware.learner has {text}, the checkpoint is of 2 ranks (ZeRO 1)"
    (row,) = rows
    assert (row.step, row.cause, row.remedy) == (1, cause, "its training state resharded")
    said = "sft continues after step 1 with its training state resharded (restart 1, 0 of 2"
    assert f"{said} without a new checkpoint): {cause}" in caplog.messages
    store = ArtifactStore(tmp_path / "store")
    change = {"step": 1, "before": TWO, "after": layout}
    says = {
        m.key.rpartition("/")[2]: m.metadata.get(RESHARDED) for m in store.manifests(kinds=[KIND])
    }
    assert says == {"000001": None, "000002": [change], "000003": [change]}
    assert store.manifest(ref).metadata[RESHARDED] == [change]


def test_passes_are_not_smaller_than_the_longest_sequence(
    prefect_server: str, tmp_path: Path
) -> None:
    seen: list[Recipe] = []

    def body(run: StageRun, call: int) -> None:
        seen.append(run.recipe)
        raise FULL

    staged = Staged(tmp_path, body)
    with pytest.raises(UserError, match=r"^memory ran out in sft \(out_of_memory\): ") as raised:
        staged.run(**SMALLER)
    assert raised.value.__cause__ is FULL
    tokens = [recipe.hardware.learner.micro_batch_tokens for recipe in seen]
    assert tokens == [4096 >> call for call in range(len(tokens))]
    assert len(tokens) > 1
    assert [smaller_passes(recipe) for recipe in seen] == [*tokens[1:], None]


def test_memory_without_restarts_is_the_users(prefect_server: str, tmp_path: Path) -> None:
    def body(run: StageRun, call: int) -> None:
        raise FULL

    staged = Staged(tmp_path, body)
    with pytest.raises(UserError, match="memory ran out in sft"):
        staged.run(restarts=0, **SMALLER)
    assert staged.calls == 1
