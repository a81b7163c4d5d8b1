"""Code that is moved, and recorded, redoes nobody's training; code that is changed says so, in keys
and status."""

import re
import subprocess
import sys

import pytest

from rlcore.store.artifacts import ArtifactStore
from tests.flows.checkout import ROOT, Checkout, fill
from tests.rlcore.store.test_versions import REMEDY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
RECIPE = "quickstart-rlhf"
MOVES = {
    "rlcore.algorithms.losses": "rlcore.objective.surrogate",
    "rlcore.algorithms.kl": "rlcore.objective.kl",
    "rlcore.rewards.gsm8k": "rlcore.verdicts.grade_school",
    "rlcore.learner.learner": "rlcore.training.actor",
    "rlcore.engines.transformers_engine": "rlcore.samplers.transformers_engine",
    "rlcore.models.packing": "rlcore.models.first_fit",
    "rlcore.rl.metrics": "rlcore.rl.iteration_metrics",
    "rlcore.results.conditions": "rlcore.data.where",
    "rlcore.store.leases": "rlcore.store.writers",
    "rlcore.envs.calculator": "rlcore.games.calculator",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    made = Checkout(tmp_path_factory.mktemp("checkout"))
    store = ArtifactStore(made.folder / "runs" / "store")
    fill(store, RECIPE, {}, made.folder / "files")
    fill(store, "calculator-grpo", {}, made.folder / "more")
    return made


def test_ten_modules_are_moved_and_every_stage_is_cached(checkout: Checkout) -> None:
    for old, new in MOVES.items():
        checkout.move(old, new)
    left = [
        p for p in checkout.sources() for old in MOVES if re.search(rf"\b{old}\b", p.read_text())
    ]
    assert not left
    said = checkout.run("-m", "rlcore.store.versions").splitlines()
    assert said
    assert all(re.search(r": version \d+ is kept, though .* changed$", line) for line in said)
    for recipe in (RECIPE, "calculator-grpo"):
        rows = checkout.status(recipe, {})
        assert {row["sentence"] for row in rows.values()} == {"cached"}


def test_a_changed_loss_is_kept_apart_and_named(checkout: Checkout) -> None:
    """After the moves: what is named is where the file is now."""
    loss = next(p for p in checkout.sources() if p.stem in ("surrogate", "policy_loss"))
    before = loss.read_text()
    loss.write_text(
        before.replace("-torch.min(", "torch.min(").replace("return ", "return 1 * ", 1)
    )
    assert loss.read_text() != before
    rows = checkout.status(RECIPE, {})
    module = ".".join(loss.relative_to(checkout.folder).with_suffix("").parts)
    (cause,) = rows["rl"]["causes"]
    assert cause["what"] == "version"
    assert re.fullmatch(rf"{cause['before']}\+modified\.\w{{12}}", cause["after"])
    assert f"{module} changed, and no version was raised" in rows["rl"]["sentence"]
    assert {stage for stage, row in rows.items() if row["state"] == "runs"} == {
        "reward_model",
        "rl",
    }
    assert rows["sft"]["state"] == "cached"
    record = "rlcore/store/test_versions.py::test_code_that_a_stage_reaches_is_recorded"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    done = subprocess.run(
        [*command, str(ROOT / "tests" / record)],
        cwd=checkout.folder,
        env={"PYTHONPATH": str(checkout.folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert f"{module} changed since version" in done.stdout
    assert REMEDY in done.stdout
    loss.write_text(before)
    assert checkout.status(RECIPE, {})["rl"]["state"] == "cached"
