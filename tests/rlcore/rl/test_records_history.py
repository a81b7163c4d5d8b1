"""The records of iterations: from any weights back to every trajectory that they learnt from."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rlcore.rl.groups import DrawnGroups
from rlcore.rl.phases import Phases
from rlcore.rl.records import KIND
from rlcore.rl.state import LoopState
from schemas.artifacts import ArtifactRef

pytestmark = pytest.mark.timeout(180)
Make = Callable[..., Phases]


def digits(row: Any) -> float:
    return sum(letter.isdigit() for letter in row.response) / 8


def half_teach(row: Any) -> float:
    """About half of the prompts have a group that differs ("000001-<uid>-03")."""
    parts = row.trajectory_id.split("-")
    return float(int(parts[-1]) % 2) if len(parts) == 3 and int(parts[1], 16) % 2 else 1.0


def one_iteration(phases: Phases, state: LoopState) -> LoopState:
    groups = DrawnGroups(wanted=phases.recipe.rl.rollout.prompts)
    while not groups.full:
        rollouts = phases.rollout(state, groups)
        groups = phases.collect(state, groups, rollouts, phases.reward(state, rollouts))
    advantages = phases.advantage(state, groups)
    return phases.sync(phases.update(state, groups, advantages))


def record(phases: Phases, iteration: int) -> tuple[dict[str, Any], dict[str, ArtifactRef]]:
    ref = phases.store.find(KIND, f"run/{iteration:06d}")
    assert ref is not None
    (row,) = phases.store.table(ref, KIND).to_dicts()
    return row, phases.store.manifest(ref).parents


def test_every_round_of_an_iteration_is_behind_its_weights(make_phases: Make) -> None:
    """Half of what was drawn would be missing from the lineage of a run with dynamic sampling."""
    over = {
        "rl.preset": "dapo",
        "reward.offset": 0.0,
        "rl.update.mini_batches": 2,
        "rl.rollout.prompts": 4,
        "rl.rollout.samples": 4,
        "rl.algorithm.dynamic_sampling.batch_factor": 1,
        "rl.algorithm.dynamic_sampling.max_rounds": 10,
        "rl.checkpoint.keep_last": 1,
    }
    phases = make_phases("quickstart", half_teach, over)
    state = phases.start()
    began = state.digest
    for _ in range(2):
        state = one_iteration(phases, state)
    keys = phases.store.keys
    rounds = [len([k for k in keys("rollouts", "run/") if f"/{i:06d}" in k]) for i in (1, 2)]
    assert max(rounds) > 1, "one round would prove nothing"
    first, parents = record(phases, 1)
    assert (first["digest_before"], first["cursor"]) == (
        began,
        phases.drawing.stream.round_size * rounds[0],
    )
    for kind in ("rollouts", "rewards"):
        assert len([p for p in parents.values() if p.kind == kind]) == rounds[0]
    assert [p.kind for p in parents.values()].count("advantages") == 1
    assert parents["previous"].key == "run/000000"
    second, parents = record(phases, 2)
    assert second["digest_before"] == first["digest_after"] != second["digest_after"]
    assert (second["digest_after"], second["version"]) == (state.digest, state.version)
    assert parents["previous"].key == "run/000001"
    for name in keys("rollouts", "run/000002"):
        ref = phases.store.find("rollouts", name)
        assert ref is not None
        assert phases.store.manifest(ref).parents["weights"] == parents["previous"]


def test_a_critic_that_warms_up_leaves_the_weights_and_is_recorded(make_phases: Make) -> None:
    phases = make_phases("quickstart-ppo", digits, {"rl.critic.warmup_iterations": 1})
    state = one_iteration(phases, phases.start())
    row, _ = record(phases, 1)
    assert (row["digest_before"], row["version"]) == (row["digest_after"], state.version)
    assert row["digest_after"] == state.digest


def test_a_record_of_a_killed_attempt_is_replaced_where_it_differs(make_phases: Make) -> None:
    """An equal one stays, because rollouts of the same attempt already name it."""
    phases = make_phases("quickstart", digits, {})
    state = phases.start()
    after = one_iteration(phases, state)
    ref = phases.store.find(KIND, "run/000001")
    assert ref is not None
    left = phases.store.manifest(ref)
    tensors = phases.workers.learner.publish().tensors
    phases.records.extend(state.digest, after, tensors)
    assert phases.store.manifest(ref) == left

    phases.records.extend(state.digest, replace(after, digest="other weights"), tensors)
    assert record(phases, 1)[0]["digest_after"] == "other weights"
    drawn = phases.rollout(after, DrawnGroups(wanted=phases.recipe.rl.rollout.prompts))
    phases.records.extend(state.digest, after, tensors)
    assert record(phases, 1)[0]["digest_after"] == after.digest
    again = phases.rollout(after, DrawnGroups(wanted=phases.recipe.rl.rollout.prompts))
    assert again.sha256 == drawn.sha256, "the same weights and seeds"
    assert phases.store.manifest(again).parents["weights"].sha256 == ref.sha256

    old = record(phases, 1)[1]["advantages"]
    drawn_from = {role: p for role, p in record(phases, 1)[1].items() if p.kind != "iterations"}
    fewer = {"advantages": phases.store.table(old, "advantages").head(1)}
    new = phases.records.put("advantages", old.key, fewer, drawn_from)
    phases.records.extend(state.digest, after, tensors)
    assert record(phases, 1)[1]["advantages"] == new != old
