"""What goes and what stays: by root, by kind, by age, and the refusals."""

from pathlib import Path

import pytest

from rlcore.recipes.text import write_yaml
from rlcore.results.retention import DATA, OF_ITERATIONS, RetentionSettings, collect, make_plan
from rlcore.results.roots import pin, unpin
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from schemas.errors import UserError
from tasks.runtime.stage_keys import declared
from tests.rlcore.results.stores import Filled, put

NOW = RetentionSettings(keep_runs=1, least_age_h=0)
LARGE = {"policy", "checkpoint", "export", "rollouts", "rewards"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("made")
    made = Filled(folder / "store", folder / "files")
    for number in (1, 2, 3):
        made.add_run(number)
    return made


@pytest.fixture
def filled(made: Filled, tmp_path: Path) -> Filled:
    """A store of three runs of one recipe."""
    return made.copy(tmp_path / "store")


def gone(filled: Filled, settings: RetentionSettings = NOW) -> set[str]:
    return set(make_plan(filled.store, settings).removed)


def runs_in(places: set[str]) -> set[str]:
    return {place.split("/")[1] for place in places}


def test_data_of_runs_that_no_root_needs_goes_and_records_stay(filled: Filled) -> None:
    removed = gone(filled)
    assert runs_in(removed) == {"sums01", "sums02"}
    assert {place.split("/")[0] for place in removed} == LARGE
    assert len(removed) == 2 * (3 + 2 * 2)


def test_each_recipe_keeps_its_own_last_runs(filled: Filled) -> None:
    filled.add_run(1, "other")
    assert runs_in(gone(filled)) == {"sums01", "sums02"}
    assert runs_in(gone(filled, RetentionSettings(keep_runs=2, least_age_h=0))) == {"sums01"}


def test_failures_displace_no_model(filled: Filled) -> None:
    """Five runs that crashed after the last good one made gc remove it."""
    before = runs_in(gone(filled))
    for number in range(21, 27):
        filled.add_run(number, ended=False)
    assert runs_in(gone(filled)) == before
    filled.add_run(30)
    assert runs_in(gone(filled)) > before, "a completed run counts"
    assert runs_in(gone(filled, RetentionSettings(keep_runs=1, least_age_h=0))) >= {
        "sums21",
        "sums26",
    }


def test_the_plan_says_whose_export_goes(filled: Filled) -> None:
    plan = make_plan(filled.store, RetentionSettings(keep_runs=2, least_age_h=0))
    exports = {place: plan.run_of(place) for place in plan.removed if place.startswith("export/")}
    assert exports == {"export/sums01": "sums-00000001"}


def test_a_champion_keeps_all_that_it_was_made_from(filled: Filled) -> None:
    """But its checkpoint, which was a means to it."""
    export = filled.store.find("export", "sums01")
    assert export is not None
    filled.add_champion("sums", 1, export)
    assert {p for p in gone(filled) if "sums01" in p} == {"checkpoint/sums01/000002"}
    assert runs_in(gone(filled, RetentionSettings(keep_runs=0, least_age_h=0))) == {
        *("sums01", "sums02", "sums03")
    }


def test_former_champions_go_only_when_asked(filled: Filled) -> None:
    for number in (1, 2):
        export = filled.store.find("export", f"sums0{number}")
        assert export is not None
        filled.add_champion("sums", number, export)
    assert "export/sums01" not in gone(filled)
    asked = RetentionSettings(keep_runs=1, keep_champions=1, least_age_h=0)
    assert {"export/sums01", "policy/sums01", "rollouts/sums01/000001"} <= gone(filled, asked)
    assert "export/sums02" not in gone(filled, asked)


def test_a_pin_keeps_until_it_is_taken_off(filled: Filled) -> None:
    policy = filled.store.find("policy", "sums01")
    assert policy is not None
    pin(filled.store, policy)
    pin(filled.store, policy)
    kept = {p for p in gone(filled) if "sums01" in p}
    assert kept == {"checkpoint/sums01/000002", "export/sums01"}
    with pytest.raises(UserError, match=r"'policy/sums02' is not pinned .*mean 'policy/sums01'"):
        unpin(filled.store, "policy/sums02")
    unpin(filled.store, "policy/sums01")
    assert "policy/sums01" in gone(filled)


def test_what_is_written_or_read_now_stays(filled: Filled) -> None:
    """A checkpoint that a replay reads, and all of a key that a run holds."""
    with filled.store.pin("checkpoint", "sums01/000002"), filled.store.hold("sums02"):
        removed = gone(filled)
    assert "checkpoint/sums01/000002" not in removed
    assert runs_in(removed) == {"sums01"}
    assert runs_in(gone(filled)) == {"sums01", "sums02"}


def test_what_was_just_made_stays(filled: Filled) -> None:
    """A command may have made it whose record is not written yet."""
    assert gone(filled, RetentionSettings(keep_runs=1)) == set()


def test_tables_of_iterations_are_dropped_of_roots_too(filled: Filled) -> None:
    filled.add_run(4, ended=False)
    removed = gone(filled, RetentionSettings(keep_runs=9, keep_rollouts=0, least_age_h=0))
    assert {place.split("/")[0] for place in removed} == {"rollouts", "rewards"}
    assert runs_in(removed) == {"sums01", "sums02", "sums03"}, "04 is to be continued"
    table = filled.store.find("rollouts", "sums01/000001")
    assert table is not None
    pin(filled.store, table)
    dropping = RetentionSettings(keep_runs=9, keep_rollouts=0, least_age_h=0)
    assert removed - gone(filled, dropping) == {"rollouts/sums01/000001"}
    newest = gone(filled, RetentionSettings(keep_runs=9, keep_rollouts=1, least_age_h=0))
    assert {place.rpartition("/")[2] for place in newest} == {"000001"}


def test_a_recipe_says_how_many_iterations_keep_their_tables(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "store", tmp_path / "files")
    filled.add_run(1)
    folder = tmp_path / "recipe"
    folder.mkdir()
    said = {"rl": {"checkpoint": {"keep_rollouts": 1}}}
    (folder / "recipe.yaml").write_text(write_yaml(said))
    filled.store.discard("recipe", "r")
    filled.store.put("recipe", "r", directory=folder, lineage=Lineage("r", "c"))
    plan = make_plan(filled.store, NOW)
    assert set(plan.removed) == {"rollouts/sums01/000001", "rewards/sums01/000001"}
    assert plan.removed["rewards/sums01/000001"].endswith("(keep_rollouts = 1)")


def test_the_results_of_all_stages_but_evaluations_are_data() -> None:
    """A stage that is added must say whether its result may go."""
    kinds = {stage.kind for stage in declared().values()}
    assert kinds - DATA == {"evaluation"}


def test_what_was_dropped_keeps_what_it_was_made_from(filled: Filled) -> None:
    """Else a second collection would remove what the first one kept."""
    extra = put(filled.store, "dataset", "x")
    table = put(filled.store, "rollouts", "sums03/000009", extra=extra)
    pin(filled.store, put(filled.store, "policy", "x", table=table))
    dropping = RetentionSettings(keep_runs=1, keep_rollouts=0, least_age_h=0)
    for _ in range(2):
        plan = make_plan(filled.store, dropping)
        assert "dataset/x" not in plan.removed
        collect(filled.store, plan, dropping, pytest.fail)
    assert filled.store.find("rollouts", "sums03/000009") is None
    assert filled.store.find("dataset", "x") == extra


def test_a_kind_that_nobody_listed_stays(filled: Filled) -> None:
    put(filled.store, "of-another-version", "x")
    assert "of-another-version/x" not in gone(filled)
    assert OF_ITERATIONS < DATA


def test_without_a_root_nothing_is_removed(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    put(store, "policy", "p")
    with pytest.raises(UserError, match=r"has no root: no champion, no pin, and no run .* pin"):
        make_plan(store, NOW)
    with pytest.raises(UserError, match=r"--keep-runs -1 is not a number from 0 to .*; give one"):
        RetentionSettings(keep_runs=-1)
    for hours in (float("nan"), float("inf")):
        with pytest.raises(UserError, match=f"--least-age-h {hours} is not a number from 0"):
            RetentionSettings(least_age_h=hours)


def test_damage_is_refused_as_its_parents_are_not_known(filled: Filled) -> None:
    path = Path(filled.store.root, "policy", "sums03", "manifest.json")
    path.write_text("{")
    with pytest.raises(ArtifactError, match=r"need cannot be told: .*policy/sums03.* verify"):
        make_plan(filled.store, NOW)
