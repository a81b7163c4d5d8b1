"""Stages run once, are verified when reused, and run again when their artifact is damaged."""

from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.settings import get_current_settings

from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore, LeaseError, Lineage
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.recipe import Recipe
from tasks.run_page.tracking import Tracker
from tasks.runtime.caching import CachedStage, StageRun
from tasks.runtime.keys import KeyParts, stage_key
from tasks.runtime.stage_keys import Declared
from tasks.runtime.stage_run import PipelineRun, StageResult
from tests.tiers import fast

pytestmark = pytest.mark.timeout(120)

PARENT = ArtifactRef(kind="dataset", key="k", uri="a", sha256="0" * 64)


def _recipe(store: Path, **changes: Any) -> Recipe:
    tree: dict[str, Any] = {
        "name": "test",
        "store": str(store),
        "model": {"path": "some/model", "dtype": "float32"},
        "data": {"sources": [{"kind": "gsm8k"}]},
        "reward": {"functions": [{"name": "gsm8k"}]},
    }
    return Recipe.model_validate({**tree, **changes})


def _records(stage: str) -> list[Path]:
    """Return Prefect's result records of a stage."""
    return list(get_current_settings().results.local_storage_path.glob(f"{stage}-*"))


class _Journal(list[str]):
    """Which stage bodies were executed, in order."""


def _stages(journal: _Journal, tmp_path: Path) -> tuple[CachedStage, CachedStage]:
    """Return two stages that write a file each; the second reads the first's."""

    def write(run: StageRun, text: str) -> ArtifactRef:
        journal.append(run.kind)
        directory = tmp_path / f"{run.kind}-{len(journal)}"
        directory.mkdir()
        (directory / "text.txt").write_text(text)
        return run.put(directory=directory)

    def prepare_data(run: StageRun) -> ArtifactRef:
        """Write the seed."""
        return write(run, str(run.recipe.seed))

    def sft(run: StageRun) -> ArtifactRef:
        """Write what the dataset said, and the number of epochs."""
        dataset = run.store.directory(run.parents["dataset"])
        return write(run, f"{(dataset / 'text.txt').read_text()} {run.recipe.sft.epochs}")

    noted = Declared("prepare_data", "dataset", lambda recipe: {"note": recipe.description})
    return CachedStage(prepare_data, noted), CachedStage(sft, Declared("sft", "policy"))


def _open(recipe: Recipe, refresh: tuple[str, ...] = ()) -> PipelineRun:
    tracker = Tracker(None, warn=print)
    return PipelineRun(
        recipe, Path(recipe.store), workers=Workers(recipe), tracker=tracker, refresh=refresh
    )


@pytest.fixture
def journal() -> _Journal:
    return _Journal()


@pytest.fixture
def pipeline(prefect_server: str, journal: _Journal, tmp_path: Path) -> Any:
    prepare_data, sft = _stages(journal, tmp_path)

    @flow(name="caching-test")
    def run(recipe: Recipe, refresh: tuple[str, ...] = ()) -> list[StageResult]:
        shared = _open(recipe, refresh)
        sft(shared, dataset=prepare_data(shared))
        return shared.results

    return run


def test_second_run_is_all_cached_and_equal(pipeline: Any, journal: _Journal, tmp_path: Path):
    recipe = _recipe(tmp_path / "store")
    first, second = pipeline(recipe), pipeline(recipe)
    assert journal == ["dataset", "policy"]
    assert [result.cached for result in first] == [False, False]
    assert [result.cached for result in second] == [True, True]
    assert [result.ref for result in first] == [result.ref for result in second]


def test_a_changed_slice_reruns_its_stage_only(pipeline: Any, journal: _Journal, tmp_path: Path):
    pipeline(_recipe(tmp_path / "store"))
    results = pipeline(_recipe(tmp_path / "store", sft={"epochs": 2}))
    assert [result.cached for result in results] == [True, False]
    assert journal == ["dataset", "policy", "policy"]


def test_a_relative_store_is_one_of_its_own_in_each_folder(
    pipeline: Any,
    journal: _Journal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """What another folder's store holds was called gone or damaged."""
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert [result.cached for result in pipeline(_recipe(Path("store")))] == [False, False]
    assert "gone or damaged" not in caplog.text


def test_hardware_reuses_everything(pipeline: Any, journal: _Journal, tmp_path: Path):
    pipeline(_recipe(tmp_path / "store"))
    results = pipeline(_recipe(tmp_path / "store", hardware={"learner": {"threads": 2}}))
    assert [result.cached for result in results] == [True, True]


def test_changed_outside_content_reruns(pipeline: Any, journal: _Journal, tmp_path: Path):
    """A new source file under the old path must not be answered with the old data."""
    pipeline(_recipe(tmp_path / "store"))
    results = pipeline(_recipe(tmp_path / "store", description="other content"))
    assert [result.cached for result in results] == [False, True], "early cut-off: equal output"


@pytest.mark.parametrize("damage", fast(["changed", "truncated", "missing"], "changed"))
def test_damaged_artifact_is_made_again(
    pipeline: Any, journal: _Journal, tmp_path: Path, damage: str
):
    """A hit on a damaged artifact would train on it, or end the run for good."""
    recipe = _recipe(tmp_path / "store")
    first = pipeline(recipe)
    place = tmp_path / "store" / "policy" / first[1].ref.key
    (file,) = place.glob("*.txt")
    file.chmod(0o644)
    if damage == "changed":
        file.unlink()
        file.write_text("9 9")
    elif damage == "truncated":
        file.unlink()
        file.write_text("")
    else:
        (place / "manifest.json").unlink()
    second = pipeline(recipe)
    assert [result.cached for result in second] == [True, False]
    assert journal == ["dataset", "policy", "policy"]
    assert second[1].ref.sha256 == first[1].ref.sha256
    third = pipeline(recipe)
    assert [result.cached for result in third] == [True, True], "the new result was not recorded"


def test_a_refreshed_stage_is_made_anew_beside_the_result_before(
    pipeline: Any, journal: _Journal, tmp_path: Path
) -> None:
    """Equal outputs leave what follows cached; the next run takes the newest generation."""
    recipe = _recipe(tmp_path / "store")
    first, again = pipeline(recipe), pipeline(recipe, ("prepare_data",))
    assert journal == ["dataset", "policy", "dataset"]
    assert [result.cached for result in again] == [False, True]
    assert again[0].ref.key == f"{first[0].ref.key}.2"
    store = ArtifactStore(recipe.store)
    assert store.find("dataset", first[0].ref.key) == first[0].ref, "the old one stays"
    assert store.manifest(again[0].ref).metadata["generation"] == 2
    third = pipeline(recipe)
    assert [result.ref for result in third] == [result.ref for result in again]
    assert all(result.cached for result in third)
    assert pipeline(recipe, ("prepare_data", "sft"))[0].ref.key.endswith(".3")


def test_a_damaged_generation_is_dropped_and_the_one_before_used(
    pipeline: Any, journal: _Journal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = _recipe(tmp_path / "store")
    first = pipeline(recipe)
    second = pipeline(recipe, ("sft",))
    (file,) = Path(second[1].ref.uri).glob("*.txt")
    file.unlink()
    file.write_text("9 9")
    third = pipeline(recipe)
    assert third[1].ref == first[1].ref
    assert third[1].cached
    assert "generation 1 of policy/" in caplog.text
    assert "as generation 2 is damaged" in caplog.text
    assert journal == ["dataset", "policy", "policy"]


def test_a_retried_flow_run_does_not_refresh_twice(
    prefect_server: str, journal: _Journal, tmp_path: Path
) -> None:
    """Each retry would train once more what the attempt before it has trained."""
    prepare_data, sft = _stages(journal, tmp_path)
    recipe = _recipe(tmp_path / "store")
    attempts: list[int] = []

    @flow(name="caching-retried", retries=1)
    def run(refresh: tuple[str, ...] = ()) -> list[StageResult]:
        shared = _open(recipe, refresh)
        dataset = prepare_data(shared)
        attempts.append(1)
        if len(attempts) == 2:
            raise RuntimeError("between two stages")
        sft(shared, dataset=dataset)
        return shared.results

    first = run()
    again = run(("prepare_data", "sft"))
    assert len(attempts) == 3
    assert [result.ref.key for result in again] == [f"{result.ref.key}.2" for result in first]
    assert journal == ["dataset", "policy", "dataset", "policy"]


def test_a_result_says_what_its_key_was_made_of(pipeline: Any, tmp_path: Path) -> None:
    recipe = _recipe(tmp_path / "store", description="note of the data")
    dataset, policy = pipeline(recipe)
    store = ArtifactStore(recipe.store)
    parts = KeyParts.from_json(store.manifest(policy.ref).metadata["made_of"])
    assert parts is not None
    assert parts.stage == "sft"
    assert parts.recipe == recipe.slice_for("sft")
    assert parts.parents == {"dataset": dataset.ref.sha256[:12]}
    inputs = KeyParts.from_json(store.manifest(dataset.ref).metadata["made_of"])
    assert inputs is not None
    assert inputs.inputs == {"note": "note of the data"}


def test_a_whole_artifact_outranks_the_record(
    pipeline: Any, journal: _Journal, tmp_path: Path
) -> None:
    """Prefect's database may be older than the store: restored, shared, or of another machine."""
    recipe = _recipe(tmp_path / "store")
    first = pipeline(recipe)[1].ref
    store = ArtifactStore(recipe.store)
    store.discard(first.kind, first.key)
    other = tmp_path / "other"
    other.mkdir()
    (other / "text.txt").write_text("made elsewhere")
    made = store.put(first.kind, first.key, directory=other, lineage=Lineage("r", "c"))
    assert made.sha256 != first.sha256
    second = pipeline(recipe)[1]
    assert (second.ref, second.cached) == (made, True)
    assert journal == ["dataset", "policy"]
    store.verify(made)


def test_flipped_local_copies_cost_nothing_in_the_bucket(
    pipeline: Any, journal: _Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe = _recipe(tmp_path).model_copy(update={"store": f"memory://{tmp_path.name}"})
    first = pipeline(recipe)
    copies = list((tmp_path / "cache").rglob("*.txt"))
    assert copies, "nothing was read back from the store"
    for copy in copies:
        copy.write_bytes(b"x" + copy.read_bytes()[1:])
    second = pipeline(recipe)
    assert [result.cached for result in second] == [True, True]
    assert [result.ref for result in second] == [result.ref for result in first]
    assert journal == ["dataset", "policy"]


def test_whole_artifact_is_used_when_the_record_is_lost(
    prefect_server: str, journal: _Journal, tmp_path: Path
):
    """A kill between the artifact and Prefect's record must not repeat the work."""
    prepare_data, _ = _stages(journal, tmp_path)
    recipe = _recipe(tmp_path / "store")

    @flow(name="caching-lost-record")
    def run() -> list[StageResult]:
        shared = _open(recipe)
        prepare_data(shared)
        return shared.results

    first = run()
    for record in _records("prepare_data"):
        record.unlink()
    second = run()
    assert journal == ["dataset"]
    assert second[0].ref == first[0].ref
    assert second[0].cached


def test_a_stage_that_another_run_makes_is_refused(
    pipeline: Any, journal: _Journal, tmp_path: Path
):
    """Both would prune the other's checkpoints. Once the first has ended, the second continues."""
    recipe = _recipe(tmp_path / "store")
    dataset, policy = pipeline(recipe)
    ArtifactStore(recipe.store).discard("policy", policy.ref.key)
    first = ArtifactStore(recipe.store, writer="flow run first (1234)")
    with (
        first.hold(policy.ref.key),
        pytest.raises(LeaseError, match=r"made by flow run first \(1234\)"),
    ):
        pipeline(recipe)
    results = pipeline(recipe)
    assert [result.cached for result in results] == [True, False]
    assert results[0].ref == dataset.ref


def test_records_are_json(pipeline: Any, tmp_path: Path):
    """A pickled record runs code of anyone who can write the results directory."""
    pipeline(_recipe(tmp_path / "store", seed=77))
    records = [path.read_bytes() for path in _records("sft")]
    assert records
    assert all(record.startswith(b"{") for record in records)
    assert all(b'"type":"json"' in record.replace(b" ", b"") for record in records)


def test_key_depends_on_content_not_on_place() -> None:
    moved = PARENT.model_copy(update={"uri": "b", "key": "other"})
    assert stage_key("sft", {"a": 1}, {"dataset": PARENT}, "f") == stage_key(
        "sft", {"a": 1}, {"dataset": moved}, "f"
    )


@pytest.mark.parametrize(
    ("stage", "recipe_slice", "parents", "fingerprint"),
    [
        ("rl", {"a": 1}, {"dataset": PARENT}, "f"),
        ("sft", {"a": 2}, {"dataset": PARENT}, "f"),
        ("sft", {"a": 1}, {"policy": PARENT}, "f"),
        ("sft", {"a": 1}, {"dataset": PARENT.model_copy(update={"sha256": "1" * 64})}, "f"),
        ("sft", {"a": 1}, {"dataset": PARENT}, "g"),
    ],
    ids=["stage", "recipe", "role", "parent", "code"],
)
def test_key_changes_with(stage: str, recipe_slice: dict, parents: dict, fingerprint: str) -> None:
    base = stage_key("sft", {"a": 1}, {"dataset": PARENT}, "f")
    assert stage_key(stage, recipe_slice, parents, fingerprint) != base


def test_key_changes_with_what_lies_outside_the_store() -> None:
    """A new file under the old path would be answered with the old data."""
    keys = {
        stage_key("sft", {}, {}, "f", inputs)
        for inputs in ({}, {"model": "1"}, {"model": "2"}, {"file": "1"})
    }
    assert len(keys) == 4


def test_a_stage_that_runs_out_of_memory_says_what_to_lower(
    prefect_server: str, tmp_path: Path
) -> None:
    """Only RL had a remedy; SFT and evaluation ended in CUDA's traceback."""

    def sft(run: StageRun) -> ArtifactRef:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    stage = CachedStage(sft, Declared("sft", "policy"))

    @flow(name="caching-test")
    def run() -> None:
        stage(_open(_recipe(tmp_path / "store")))

    with pytest.raises(
        UserError, match=r"^memory ran out in sft \(out_of_memory\): .*sft\.max_tok"
    ):
        run()
