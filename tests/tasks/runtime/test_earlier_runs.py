"""A half-done RL run whose code was edited: refused by name, or continued when that is accepted."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest

from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from schemas.artifacts import Manifest
from tests.flows.small_run import INLINE, SMALL, run_recipe, summary_of

pytestmark = pytest.mark.timeout(300)
HELPER = (
    "def score(response):\n    return {}sum(map(str.isdigit, response)) / max(1, len(response))\n"
)


def edit(folder: Path, sign: str) -> None:
    """Write a reward whose helper, one import deep, has ``sign``."""
    package = folder / "my_rewards"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "helper.py").write_text(HELPER.format(sign))
    (package / "digits.py").write_text(
        "from my_rewards.helper import score\n\n\n"
        "def reward(prompt, response):\n    return score(response)\n"
    )


@pytest.fixture(scope="module")
def left(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in iteration 3."""
    folder = tmp_path_factory.mktemp("left")
    edit(folder, "")
    assert run(folder, kill_at="update")[0] == -signal.SIGKILL
    return folder


@pytest.fixture
def edited(left: Path, tmp_path: Path) -> Path:
    """A copy of it whose reward was changed since."""
    folder = tmp_path / "project"
    shutil.copytree(left, folder, symlinks=True)
    edit(folder, "-")
    return folder


def run(folder: Path, kill_at: str = "", **parameters: bool) -> tuple[int, str]:
    over = {**SMALL, **INLINE, "reward.functions": [{"name": "my_rewards.digits:reward"}]}
    over |= {"sft.enabled": False, "evaluate.checkpoints": ["rl"]}
    arguments = [kill_at, "quickstart", json.dumps(over), json.dumps(parameters)]
    done = run_recipe(folder, arguments)
    return done.returncode, done.stdout


def policies(folder: Path) -> list[Manifest]:
    return [m for m in ArtifactStore(folder / "runs" / "store").manifests() if m.kind == "policy"]


@pytest.mark.slow
def test_a_run_of_other_code_is_refused_and_goes_on_when_accepted(edited: Path) -> None:
    store = ArtifactStore(edited / "runs" / "store")
    (began,) = {key.partition("/")[0] for key in store.keys("checkpoint")}

    code, output = run(edited)
    assert code != 0
    said = re.search(r"stopped after iteration 2, .* was (\w{12}) and is (\w{12}); run it", output)
    assert said, output[-3000:]
    before, now = said.groups()
    assert before != now
    assert f"delete {store.root}/checkpoint/{began} to begin again" in output
    assert not policies(edited), "nothing is trained before somebody has decided"

    code, output = run(edited, accept_code=True)
    assert code == 0, output[-3000:]
    assert f"continues after iteration 2 with other code, as accepted: digest {before}" in output
    (policy,) = policies(edited)
    accepted = policy.metadata["accepted_code"]
    assert accepted["step"] == 2
    assert [accepted[name][:12] for name in ("before", "after")] == [before, now]
    assert policy.key != began, "neither code alone made it, so neither finds it"
    steps = query(
        store, f"select step from metrics where key like '{began}/%' and name = 'val/score'"
    )
    assert sorted(steps["step"]) == [0, 2, 4], "one run, one curve"
    signs = query(store, "select iteration, max(score) > 0 as old from trajectories group by 1")
    assert dict(signs.rows()) == {1: True, 2: True, 3: True, 4: False}, (
        "3 was scored before the kill"
    )

    code, output = run(edited, accept_code=True)
    assert code == 0, output[-3000:]
    assert "rl" in summary_of(edited)["cached"]
    assert len(policies(edited)) == 1


@pytest.mark.slow
def test_begun_again_once_its_checkpoints_are_deleted(edited: Path) -> None:
    store = ArtifactStore(edited / "runs" / "store")
    for key in store.keys("checkpoint"):
        store.discard("checkpoint", key)
    code, output = run(edited)
    assert code == 0, output[-3000:]
    (policy,) = policies(edited)
    assert "accepted_code" not in policy.metadata
