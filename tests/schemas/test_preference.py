"""Section preference: presets, and keys of recipes that are older than it."""

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.preference import PreferenceSection
from schemas.presets import PREFERENCE_PRESETS

DATA = {"kind": "file", "path": "some/where/p.jsonl"}


@pytest.mark.parametrize("name", PREFERENCE_PRESETS)
def test_an_algorithm_is_a_preset_that_a_recipe_may_override(name: str) -> None:
    plain = PreferenceSection.model_validate({"algorithm": name, "data": DATA})
    assert plain.batch_size == PREFERENCE_PRESETS[name]["batch_size"]
    changed = {"algorithm": name, "data": DATA, "optimizer": {"lr": 3e-6}, "beta": 0.3}
    section = PreferenceSection.model_validate(changed)
    assert (section.optimizer.lr, section.beta) == (3e-6, 0.3)
    assert section.optimizer.schedule == plain.optimizer.schedule, "one key resets no other"


def test_unknown_algorithms_and_sampled_data_are_refused() -> None:
    with pytest.raises(ValueError, match="'dpo' or 'kto'"):
        PreferenceSection.model_validate({"algorithm": "simpo", "data": DATA})
    with pytest.raises(ValueError, match="kind"):
        PreferenceSection.model_validate({"data": {"kind": "samples"}})


def test_what_the_stage_depends_on_and_what_does_not() -> None:
    """The path of the file counts by its name, its content by the digest; no other key changes."""
    names = ("prepare_data", "sft", "rl", "evaluate", "export")
    given = {"data": DATA, "max_tokens": 64, "beta": 0.2}
    plain = load_recipe("quickstart", directory=RECIPES)
    with_it = load_recipe("quickstart", {"preference": given}, directory=RECIPES)
    for stage in names:
        assert plain.slice_for(stage) == with_it.slice_for(stage)
    assert "enabled" not in plain.slice_for("rl")["rl"]
    part = with_it.slice_for("preference")
    assert part["preference"]["data"]["path"] == "p.jsonl"
    assert "checkpoint_every" not in part["preference"]
    assert set(part) == {"seed", "model", "preference"}
