"""A run looks at what it is given before it makes anything."""

from pathlib import Path

import pytest
from prefect import flow

from flows.paths import RECIPES
from schemas.errors import UserError
from tasks.runtime.run import open_run
from tests.flows.small_run import INLINE, SMALL

pytestmark = pytest.mark.timeout(60)


def test_a_run_that_cannot_work_ends_before_it_has_a_folder(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SFT had been trained before the reward function was imported for the first time."""
    monkeypatch.chdir(tmp_path)
    misspelt = {"reward.functions": [{"name": "tests.flows.small_reward:digit"}]}

    @flow(name="start-test")
    def start() -> None:
        with open_run("quickstart", {**SMALL, **INLINE, **misspelt}, recipes=RECIPES):
            pytest.fail("the run began")

    with pytest.raises(UserError, match="mean 'digits'"):
        start(return_state=True).result()
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_place_of_the_link_to_the_newest_run_is_named(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a project that followed links has one; it ended runs in a traceback."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "latest").mkdir(parents=True)

    @flow(name="latest-test")
    def latest() -> None:
        with open_run("quickstart", {**SMALL, **INLINE}, recipes=RECIPES):
            pytest.fail("the run began")

    with pytest.raises(
        UserError, match=r"runs/latest is a folder and not .*; remove it"
    ) as refused:
        latest(return_state=True).result()
    assert "\n" not in str(refused.value)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["latest"]
