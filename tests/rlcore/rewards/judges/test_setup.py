"""Whose calls are counted together, where answers are kept, and that a key is asked for early."""

from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.rewards.judges.setup import cache_folder, check_keys, judge_setup, key_of
from schemas.errors import UserError
from schemas.recipe import Recipe
from tests.rlcore.rewards.judges.asking import judge

FUNCTIONS = [{"name": "judge", "options": {"judge": "main"}}]


def recipe(**changes: Any) -> Recipe:
    given = {"reward.functions": FUNCTIONS, "judges.main": judge().model_dump(), **changes}
    return load_recipe("quickstart", given, directory=RECIPES)


def run(**changes: Any) -> str:
    found = judge_setup(recipe(**changes))
    assert found is not None
    return found.run


@pytest.mark.parametrize(
    "change",
    [
        {"judges.main.max_calls": 5000},
        {"judges.main.url": "http://127.0.0.1:9/v1"},
        {"judges.main.limits.concurrency": 1},
        {"hardware.reward_workers": 3},
    ],
)
def test_a_rerun_counts_on(change: dict[str, Any]) -> None:
    """Raising the ceiling must not begin at 0 again."""
    assert run(**change) == run()


@pytest.mark.parametrize("change", [{"seed": 3}, {"judges.main.version": "2"}])
def test_another_run_has_a_count_of_its_own(change: dict[str, Any]) -> None:
    assert run(**change) != run()


def test_a_recipe_without_judges_has_no_setup() -> None:
    assert judge_setup(load_recipe("quickstart", directory=RECIPES)) is None


def test_the_cache_is_in_a_local_store_or_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder(str(tmp_path)) == tmp_path / ".judges"
    assert cache_folder(f"file://{tmp_path}") == tmp_path / ".judges"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, other = cache_folder("s3://bucket/a"), cache_folder("s3://bucket/b")
    assert one != other
    assert one.is_relative_to(tmp_path)


def test_a_judge_without_its_key_is_refused_with_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = judge(key_env="PLANTED_KEY")
    monkeypatch.delenv("PLANTED_KEY", raising=False)
    with pytest.raises(UserError, match=r"judges.j.key_env = 'PLANTED_KEY' is not set where"):
        key_of("judges.j", one.key_env)
    monkeypatch.setenv("PLANTED_KEY", "")
    with pytest.raises(UserError, match="not set"):
        check_keys(recipe(**{"judges.main.key_env": "PLANTED_KEY"}))
    monkeypatch.setenv("PLANTED_KEY", "secret")
    assert key_of("judges.j", one.key_env) == "secret"
    assert key_of("judges.j", judge().key_env) is None


def test_the_bound_on_seconds_grows_with_rows_and_covers_the_limits() -> None:
    found = judge_setup(recipe(**{"judges.main.limits": {"requests_per_minute": 6, "retries": 0}}))
    assert found is not None
    assert found.longest_s(600) > 600 * 10
    assert found.longest_s(1200) > 1.5 * found.longest_s(600)
