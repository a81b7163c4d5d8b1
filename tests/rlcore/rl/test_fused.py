"""Old log-probs from the update's own pass: the same training, and no guard is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from rlcore.models.ragged import from_arrays, to_arrays
from rlcore.rewards.types import RewardRow
from rlcore.rl import own_logprobs
from rlcore.rl.batch import of_prompts
from rlcore.rl.guards import SamplerDriftError
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import Phases
from rlcore.rl.records import RunRecords
from rlcore.rl.scores import with_scores
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.rl.test_algorithms import digits
from tests.rlcore.rl.test_own_logprobs import own_digest, scored_iteration

Make = Callable[..., Phases]
ONE_STEP: dict[str, Any] = {
    "rl.update.mini_batches": 1,
    "rl.update.epochs": 1,
    "rl.update.optimizer.lr": 0.01,
}
FUSED = {**ONE_STEP, "rl.update.old_logprobs": "fused"}
TWO = {"rl.iterations": 2}
IN_ADVANTAGES = {"training/rollout_logprobs_gap_max", "training/rollout_probs_diff_max"}


def half(row: RewardRow) -> float:
    """Of every other prompt all answers are worth the same: their advantages are 0."""
    return digits(row) if int(row.ground_truth or 0) % 2 else 1.0


def equal(row: RewardRow) -> float:
    """Nothing to learn."""
    del row
    return 1.0


def trained(phases: Phases) -> tuple[str, list[dict[str, float]]]:
    """Train; return the digest at the end and every iteration's metrics."""
    said: list[dict[str, float]] = []
    state = iterate(phases, Steps(), lambda state, metrics: said.append(dict(metrics)))
    return state.digest, said


@pytest.mark.parametrize(
    ("name", "score", "over"),
    [
        ("quickstart", half, {}),
        ("quickstart", digits, {"rl.algorithm.kl": {"where": "loss", "coef": 0.1}}),
        ("quickstart-gspo", digits, {}),
        ("quickstart-gepo", half, {}),
        ("quickstart-rloo", half, {"rl.algorithm.kl.where": "none"}),
        ("quickstart-ppo", digits, {"rl.algorithm.kl": {"where": "loss", "coef": 0.1}}),
        (
            "quickstart-dapo",
            digits,
            {"rl.algorithm.dynamic_sampling.metric": "final_score"},
        ),
    ],
)
def test_fused_trains_the_same_weights_and_reports_the_same(
    name: str, score: Any, over: dict[str, Any], make_phases: Make, tmp_path: Path
) -> None:
    """Scoring before the update served the guards alone."""
    found = {}
    for kind, settings in (("first", ONE_STEP), ("fused", FUSED)):
        store = ArtifactStore(str(tmp_path / kind))
        found[kind] = trained(make_phases(name, score, {**settings, **TWO, **over}, store=store))
    assert found["fused"][0] == found["first"][0]
    for first, fused in zip(found["first"][1], found["fused"][1], strict=True):
        assert first.keys() - fused.keys() == set()
        assert first["actor/entropy"] == pytest.approx(fused["actor/entropy"], rel=1e-3)
        if "actor/ref_kl" in first:
            assert first["actor/ref_kl"] == pytest.approx(fused["actor/ref_kl"], abs=1e-5)
        assert first["actor/pg_loss"] == fused["actor/pg_loss"]
        assert 0 < fused["training/rollout_logprobs_gap_max"] < 1e-3


def test_what_it_scored_is_on_record(make_phases: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that train, and a sample of those that do not: the same figures as a scoring before."""
    monkeypatch.setattr(own_logprobs, "FUSED_SAMPLE", 3)
    phases = make_phases("quickstart", half, FUSED)
    state = phases.start()
    groups, advantages = scored_iteration(phases, state)
    table = phases.store.table(advantages.ref, "advantages")
    assert table["old_logprobs"].is_null().all()
    expected = with_scores(
        of_prompts(phases.records.drawn(groups), groups.kept), phases.recipe.rl, phases.workers
    )
    phases.update(state, groups, advantages)
    ref = phases.store.find("own_logprobs", "run/000001")
    assert ref is not None
    own = phases.store.table(ref, "own_logprobs")
    trains = {
        name
        for name, row in zip(table["trajectory_id"], to_arrays(table["advantages"]), strict=True)
        if row.any()
    }
    scored = set(own["trajectory_id"])
    assert trains < scored
    assert len(scored - trains) == 3 == phases.metrics._values["training/fused_sample_rows"]
    masks, old = to_arrays(expected["loss_mask"]), to_arrays(expected["old_logprobs"])
    places = {name: row for row, name in enumerate(table["trajectory_id"])}
    for name, _, row in own.iter_rows():
        first = np.where(masks[places[name]], old[places[name]], 0.0)
        np.testing.assert_allclose(row, first, atol=1e-4)


@pytest.mark.parametrize("score", [half, equal], ids=["some rows train", "none does"])
def test_an_engine_that_was_not_synced_stops_before_the_step(
    score: Any, make_phases: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where every group is of equal rewards, and the step would be empty."""
    phases = make_phases("quickstart", score, FUSED)
    state = phases.start()
    groups, advantages = scored_iteration(phases, state)
    before = phases.workers.learner.stamp()
    drawn = phases.records.drawn(groups)
    stale = drawn.with_columns(
        from_arrays(
            "sampler_logprobs",
            [row - 0.01 for row in to_arrays(drawn["sampler_logprobs"])],
            pl.Float32,
        )
    )
    monkeypatch.setattr(RunRecords, "drawn", lambda self, groups: stale)
    with pytest.raises(SamplerDriftError, match=r"max \|gap\| = 0\.01"):
        phases.update(state, groups, advantages)
    assert phases.workers.learner.stamp() == before
    assert own_digest(phases.store) is None


def test_a_second_attempt_records_and_trains_the_same(make_phases: Make, tmp_path: Path) -> None:
    """The task repeated in one process, and an update killed before its sync, bit for bit."""
    store = ArtifactStore(str(tmp_path / "store"))
    phases = make_phases("quickstart", half, FUSED, store=store)
    state = phases.start()
    groups, advantages = scored_iteration(phases, state)
    after = phases.update(state, groups, advantages)
    stamp, recorded = phases.workers.learner.stamp(), own_digest(store)
    assert recorded is not None
    assert phases.update(state, groups, advantages) == after
    assert (phases.workers.learner.stamp(), own_digest(store)) == (stamp, recorded)

    again = make_phases("quickstart", half, FUSED, store=store)
    state = again.start()
    groups, advantages = scored_iteration(again, state)
    again.update(state, groups, advantages)
    assert (again.workers.learner.stamp(), own_digest(store)) == (stamp, recorded)


def test_while_the_critic_warms_up_the_batch_is_scored_before(make_phases: Make) -> None:
    """No update passes over it, and the sampler is to be checked all the same."""
    warm = {"rl.critic.warmup_iterations": 1, "rl.algorithm.kl": {"where": "loss", "coef": 0.1}}
    phases = make_phases("quickstart-ppo", digits, {**FUSED, **warm})
    _, advantages = scored_iteration(phases, phases.start())
    assert phases.store.table(advantages.ref, "advantages")["old_logprobs"].is_not_null().all()
    assert phases.metrics._values.keys() > IN_ADVANTAGES
