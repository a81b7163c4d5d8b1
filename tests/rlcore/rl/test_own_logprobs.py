"""An iteration whose update scores its own old log-probs: both scorings are on record."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from rlcore.models.ragged import to_arrays
from rlcore.recipes.load import load_recipe
from rlcore.results.queries import query
from rlcore.rl.advantage import Advantages
from rlcore.rl.groups import DrawnGroups
from rlcore.rl.phases import Phases
from rlcore.rl.records import RunRecords
from rlcore.rl.state import LoopState
from rlcore.store.artifacts import ArtifactStore
from schemas.artifacts import ArtifactRef
from tests.rlcore.rl.conftest import RECIPES
from tests.rlcore.rl.test_algorithms import digits
from tests.rlcore.rl.test_update import request_of, small_batch

Make = Callable[..., Phases]
# The update packs 512 tokens a pass where the first scoring of a learner this small packs 4,096.
GSPO: dict[str, Any] = {
    "rl.update.mini_batches": 2,
    "rl.update.optimizer.lr": 0.01,
    "hardware.learner.micro_batch_tokens": 512,
}


def scored_iteration(phases: Phases, state: LoopState) -> tuple[DrawnGroups, Advantages]:
    """Run the phases up to the update."""
    groups = DrawnGroups(wanted=phases.recipe.rl.rollout.prompts)
    rollouts = phases.rollout(state, groups)
    groups = phases.collect(state, groups, rollouts, phases.reward(state, rollouts))
    return groups, phases.advantage(state, groups)


def own_digest(store: ArtifactStore) -> str | None:
    found = store.find("own_logprobs", "run/000001")
    return found and found.sha256


def test_both_scorings_are_recorded(make_phases: Make) -> None:
    """SQL can recompute what the update saw: per token of each trajectory that trained."""
    phases = make_phases("quickstart-gspo", digits, {**GSPO, "rl.update.epochs": 2})
    state = phases.start()
    groups, advantages = scored_iteration(phases, state)
    phases.update(state, groups, advantages)
    metrics = phases.metrics._values
    assert 0 <= metrics["training/old_logprobs_gap_mean"] < 1e-4
    rows = query(
        phases.store,
        "SELECT advantages, old_logprobs, own_logprobs, loss_mask FROM trajectories",
    )
    for row in rows.iter_rows(named=True):
        assert (row["own_logprobs"] is not None) == any(row["advantages"])
        if row["own_logprobs"] is not None:
            mask = np.array(row["loss_mask"])
            own, first = np.array(row["own_logprobs"]), np.array(row["old_logprobs"])
            np.testing.assert_allclose(own, np.where(mask, first, 0.0), atol=1e-4)
    epochs = query(
        phases.store,
        "SELECT epoch, count(*) AS n, list(own_logprobs ORDER BY trajectory_id) AS own"
        " FROM own_logprobs GROUP BY epoch ORDER BY epoch",
    )
    assert epochs["epoch"].to_list() == [0, 1]
    assert epochs["n"].to_list() == [rows["own_logprobs"].count()] * 2
    assert epochs["own"][0].to_list() == epochs["own"][1].to_list(), "unshuffled: packed alike"


def test_the_first_ratios_are_one_and_advantages_keep_the_first_scoring(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a first scoring that is off by what bfloat16 may round, GSPO clips nothing."""
    from rlcore.learner.learner import Learner

    phases = make_phases("quickstart-gspo", digits, GSPO)
    state = phases.start()
    groups, advantages = scored_iteration(phases, state)
    table = phases.store.table(advantages.ref, "advantages")
    noisy = table.with_columns(pl.col("old_logprobs").list.eval(pl.element() - 6e-4))
    steps = []
    update = Learner.update

    def seen(self: Learner, request: Any) -> Any:
        result = update(self, request)
        steps.append(result.steps)
        return result

    monkeypatch.setattr(Learner, "update", seen)
    monkeypatch.setattr(
        RunRecords, "table", lambda records, ref, name: _given(phases, noisy, ref, name)
    )
    phases.update(state, groups, advantages)
    ((first, second),) = steps
    assert first["actor/ratio_max"] == 1.0
    assert first["actor/ppo_kl"] == first["actor/pg_clipfrac"] == 0.0
    assert second["actor/ppo_kl"] != 0.0
    assert phases.metrics._values["training/old_logprobs_gap_mean"] == pytest.approx(6e-4, rel=0.1)
    assert own_digest(phases.store) is not None


def _given(phases: Phases, noisy: pl.DataFrame, ref: ArtifactRef, name: str) -> pl.DataFrame:
    return noisy if name == "advantages" else phases.store.table(ref, name)


def test_a_second_attempt_records_and_trains_the_same(make_phases: Make, tmp_path: Path) -> None:
    """The task repeated in one process, and an update killed before its sync, bit for bit."""
    store = ArtifactStore(str(tmp_path / "store"))
    phases = make_phases("quickstart-gspo", digits, GSPO, store=store)
    state = phases.start()
    groups, advantages = scored_iteration(phases, state)
    after = phases.update(state, groups, advantages)
    stamp, recorded = phases.workers.learner.stamp(), own_digest(store)
    assert recorded is not None
    store.discard("own_logprobs", "run/000001")
    assert phases.update(state, groups, advantages) == after
    assert (phases.workers.learner.stamp(), own_digest(store)) == (stamp, recorded)

    again = make_phases("quickstart-gspo", digits, GSPO, store=store)
    state = again.start()
    groups, advantages = scored_iteration(again, state)
    again.update(state, groups, advantages)
    assert (again.workers.learner.stamp(), own_digest(store)) == (stamp, recorded)


@pytest.mark.parametrize(
    ("name", "over", "own"),
    [
        ("quickstart-gspo", {}, True),
        ("quickstart-gspo", {"rl.algorithm.ratio_level": "sequence-token"}, True),
        ("quickstart-gspo", {"rl.update.old_logprobs": "first"}, False),
        ("quickstart-gspo", {"rl.update.mini_batches": 1}, False),
        ("quickstart-gspo", {"rl.update.mini_batches": 1, "rl.update.epochs": 2}, True),
        ("quickstart-gepo", {"model.dtype": "bfloat16"}, False),
        ("quickstart", {}, False),
        ("quickstart", {"rl.update.old_logprobs": "own"}, True),
        ("quickstart", {"model.dtype": "bfloat16"}, True),
    ],
)
def test_who_scores_its_own(name: str, over: dict[str, Any], own: bool) -> None:
    """Where rounding is as wide as the clip range; not where no old log-probs are read."""
    small = {"rl.rollout.prompts": 4, "rl.update.mini_batches": 2, "rl.update.epochs": 1}
    recipe = load_recipe(name, {**small, **over}, directory=RECIPES)
    batch = small_batch(["stop"] * 4, [True] * 4)
    request = request_of(batch, recipe)
    assert request.own_logprobs is own
    reads = "old_logprobs" in request.mini_batches[0][0].objective.fields
    assert reads or not own, "a pass for log-probs that nothing reads"


def test_the_first_scoring_is_recorded_alone_by_default(make_phases: Make) -> None:
    phases = make_phases("quickstart", digits, {"rl.update.mini_batches": 2})
    state = phases.start()
    groups, advantages = scored_iteration(phases, state)
    phases.update(state, groups, advantages)
    assert own_digest(phases.store) is None
    assert "training/old_logprobs_gap_max" not in phases.metrics._values
    lists = phases.store.table(advantages.ref, "advantages")["old_logprobs"]
    assert all(np.isfinite(row).all() for row in to_arrays(lists))
