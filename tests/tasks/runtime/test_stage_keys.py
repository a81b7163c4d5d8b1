"""What is declared of the stages, without importing what they run."""

from flows.paths import RECIPES
from flows.rl_pipeline import STAGES
from rlcore.recipes.load import load_recipe
from rlcore.store.versions import VERSIONS
from schemas.stages import Stage
from tasks.runtime.stage_keys import declared


def test_a_stage_counts_its_own_module() -> None:
    """One whose own file were left out would be served from before its last change."""
    found = declared()
    assert list(found) == list(STAGES)
    for stage, made in STAGES.items():
        assert made.declared.stage == found[stage].stage
        assert made._body.__module__ in VERSIONS[stage].code


def test_only_of_rl_the_number_of_iterations_is_an_end() -> None:
    """Runs of the same steps share a trajectory, by which the longer continues the shorter."""
    few, more = (
        load_recipe("quickstart", {"rl.iterations": number}, directory=RECIPES) for number in (3, 5)
    )
    one, other = (declared()[Stage.RL].keys(recipe, {}) for recipe in (few, more))
    assert (one.total, other.total) == (3, 5)
    assert one.trajectory == other.trajectory is not None
    assert one.identity != other.identity
    warm_start = declared()[Stage.SFT].keys(few, {})
    assert (warm_start.trajectory, warm_start.total) == (None, None)
