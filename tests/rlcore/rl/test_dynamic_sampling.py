"""Dynamic sampling with scripted rewards: how much is drawn, what is kept, what the cap does."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rlcore.results.run import Run, record_stage
from rlcore.rewards.types import RewardRow
from rlcore.rewards.unscored_rows import RewardFailureError
from rlcore.rl.groups import DrawnGroups, DynamicSamplingError, split_by_signal
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState
from rlcore.store.artifacts import ArtifactStore
from schemas.algorithm import DynamicSampling
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from tests.rlcore.results.evaluated import make_run
from tests.rlcore.results.records import stage_record
from tests.rlcore.rl.conftest import LINEAGE

PROMPTS, SAMPLES = 4, 4
DAPO = {
    "rl.preset": "dapo",
    "reward.offset": 0.0,
    "rl.update.mini_batches": 2,
    "rl.rollout.prompts": PROMPTS,
    "rl.rollout.samples": SAMPLES,
    "rl.algorithm.dynamic_sampling.batch_factor": 1,
    "rl.algorithm.dynamic_sampling.max_rounds": 10,
}
Make = Callable[..., Phases]
REF = ArtifactRef(kind="rollouts", key="k", uri="u", sha256="0" * 64, rows={})


def _named(row: RewardRow) -> tuple[str, int]:
    """The prompt and sample of a trajectory ("000001-<uid>-03"); validation rows carry a uid."""
    parts = row.trajectory_id.split("-")
    return (parts[1], int(parts[2])) if len(parts) == 3 else (parts[0], 0)


def _is_even(uid: str) -> bool:
    """A coin by prompt, the same in every run."""
    return int(uid, 16) % 2 == 0


def half_teach(row: RewardRow) -> float:
    """About half of the prompts have a mixed group; the others are all right."""
    uid, sample = _named(row)
    return float(sample % 2) if _is_even(uid) else 1.0


def none_teach(row: RewardRow) -> float:
    """Every group agrees: all right or all wrong."""
    return float(_is_even(_named(row)[0]))


def draw(phases: Phases, state: LoopState) -> tuple[DrawnGroups, list[set[str]]]:
    """Run rounds until the batch is full; return it and the prompts of each round."""
    groups, rounds = DrawnGroups(wanted=phases.recipe.rl.rollout.prompts), []
    while not groups.full:
        rollouts = phases.rollout(state, groups)
        rounds.append(set(phases.store.table(rollouts, "rollouts")["uid"]))
        groups = phases.collect(state, groups, rollouts, phases.reward(state, rollouts))
    return groups, rounds


def test_rounds_draw_new_prompts_until_the_batch_is_exactly_full(make_phases: Make) -> None:
    """Drawing the same prompts again, or training more than was asked, would bias the batch."""
    phases = make_phases("quickstart", half_teach, DAPO)
    state = phases.start()
    groups, rounds = draw(phases, state)
    assert len(groups.kept) == PROMPTS
    assert len(set(groups.kept)) == PROMPTS
    assert len(rounds) == len(groups.rounds) > 1
    assert sum(map(len, rounds)) == len(set.union(*rounds)) == groups.drawn
    # One call fewer would not have filled it.
    kept_before = [uid for uid in groups.kept if uid not in rounds[-1]]
    assert len(kept_before) < PROMPTS

    advantages = phases.advantage(state, groups)
    assert advantages.ref.rows["advantages"] == PROMPTS * SAMPLES
    metrics = groups.metrics()
    processed = PROMPTS + len(groups.spare) + groups.surplus
    assert metrics["train/filtered_ratio"] == len(groups.spare) / processed
    assert metrics["train/num_gen_batches"] == len(rounds)
    assert metrics["train/discarded_groups"] == groups.surplus
    after = phases.sync(phases.update(state, groups, advantages))
    assert after.cursor == state.cursor + groups.drawn
    _, next_rounds = draw(phases, after)
    assert not next_rounds[0] & set.union(*rounds), "the next iteration continues with the stream"


def test_kept_groups_differ_and_are_whole(make_phases: Make) -> None:
    phases = make_phases("quickstart", half_teach, DAPO)
    state = phases.start()
    groups, _ = draw(phases, state)
    advantages = phases.store.table(phases.advantage(state, groups).ref, "advantages")
    assert all(any(row) for row in advantages["advantages"].to_list()), "a kept row teaches"
    assert advantages.height == PROMPTS * SAMPLES


@pytest.mark.parametrize(
    ("policy", "kept"), [("error", None), ("train_partial", None), ("pad_unfiltered", PROMPTS)]
)
def test_the_cap_does_what_it_says(make_phases: Make, policy: str, kept: int | None) -> None:
    """No signal at all: only padding can continue; anything else must end in one sentence."""
    section = "rl.algorithm.dynamic_sampling"
    over = {**DAPO, f"{section}.max_rounds": 2, f"{section}.on_exhausted": policy}
    phases = make_phases("quickstart", none_teach, over)
    state = phases.start()
    if kept is None:
        with pytest.raises(
            DynamicSamplingError, match=r"2 generation rounds kept 0 of 4 .*max_ro"
        ) as refusal:
            draw(phases, state)
        assert "or set" not in str(refusal.value), "a partial batch of nothing is no remedy"
        return
    groups, rounds = draw(phases, state)
    assert len(rounds) == 2
    assert len(groups.kept) == kept


def test_a_partial_batch_is_proposed_where_there_is_one() -> None:
    some = DrawnGroups(wanted=4).with_round(REF, REF, passing=["a"], failing=["b", "c"], drawn=3)
    section = DynamicSampling(max_rounds=1)
    with pytest.raises(DynamicSamplingError, match=r"set .*on_exhausted to 'train_partial'$"):
        some.close_if_exhausted(section, more_prompts=True)
    lost = DrawnGroups(wanted=4).with_round(
        REF, REF, passing=["a"], failing=["b", "c"], unscored=2, drawn=3
    )
    with pytest.raises(
        DynamicSamplingError,
        match=r"0 whose samples all agree and 2 with fewer than two scored samples .*; make the re",
    ):
        lost.close_if_exhausted(section, more_prompts=True)


def none_scored(row: RewardRow) -> float | None:
    """No training row has a score; validation, which is first, has."""
    return None if "-" in row.trajectory_id else 1.0


def test_a_round_without_one_score_says_what_took_them(make_phases: Make) -> None:
    """It said that no function judges correctness, of a function that does."""
    allowed = {"reward.max_timeout_fraction": 1.0, "reward.max_error_fraction": 1.0}
    phases = make_phases("quickstart", none_scored, {**DAPO, **allowed})
    with pytest.raises(RewardFailureError, match=f"{PROMPTS * SAMPLES} rows of the round") as lost:
        draw(phases, phases.start())
    assert "judges correctness" not in str(lost.value)


def test_partial_batch_trains_what_there_is(make_phases: Make) -> None:
    section = "rl.algorithm.dynamic_sampling"
    partial = {f"{section}.max_rounds": 1, f"{section}.on_exhausted": "train_partial"}
    over = {**DAPO, **partial, "seed": 1}
    phases = make_phases("quickstart", half_teach, over)
    state = phases.start()
    groups, _ = draw(phases, state)
    assert 0 < len(groups.kept) < PROMPTS
    after = phases.update(state, groups, phases.advantage(state, groups))
    assert after.version == state.version + 1


def test_unlimited_rounds_end_when_every_prompt_was_drawn(make_phases: Make) -> None:
    """Otherwise a dead reward would sample forever."""
    over = {**DAPO, "rl.algorithm.dynamic_sampling.max_rounds": 0}
    phases = make_phases("quickstart", none_teach, over)
    state = phases.start()
    with pytest.raises(DynamicSamplingError, match="every training prompt was drawn"):
        draw(phases, state)


def test_half_full_batch_is_found_again(make_phases: Make, tmp_path: Path) -> None:
    """A process that dies between two rounds continues with what it had drawn."""
    store = ArtifactStore(str(tmp_path / "store"))
    first = make_phases("quickstart", half_teach, DAPO, store=store)
    state = first.start()
    groups = DrawnGroups(wanted=first.recipe.rl.rollout.prompts)
    rollouts = first.rollout(state, groups)
    groups = first.collect(state, groups, rollouts, first.reward(state, rollouts))
    assert not groups.full

    second = make_phases("quickstart", half_teach, DAPO, store=store)
    state = second.start()
    scored_before = second.workers.rewards.rows  # type: ignore[attr-defined]
    again = DrawnGroups(wanted=second.recipe.rl.rollout.prompts)
    assert second.rollout(state, again) == rollouts
    groups_again, _ = draw(second, state)
    assert groups_again.rounds[0][0] == rollouts
    scored = second.workers.rewards.rows - scored_before  # type: ignore[attr-defined]
    assert scored == (len(groups_again.rounds) - 1) * PROMPTS * SAMPLES, "round 0 is not rescored"


def test_filter_looks_at_the_chosen_metric() -> None:
    """Groups of one scored row have no baseline and do not pass."""
    uids = np.array(["a", "a", "b", "b", "c", "c", "d", "d"])
    values = np.array([0.0, 1.0, 1.0, 1.0, 0.5, np.nan, 0.1, 0.1 + 1e-12])
    assert split_by_signal(uids, values, tolerance=1e-9) == (["a"], ["b", "c", "d"], 1)


def read(phases: Phases, runs: Path) -> Run:
    """Open what ``phases`` recorded as the stage rl of a run below ``runs``."""
    folder = make_run(runs, "small-0123abcd")
    record_stage(phases.store, stage_record(folder.name, "rl", kind="policy", key="run"), LINEAGE)
    return Run.open("latest", runs)


def test_what_was_drawn_is_read_with_its_round_and_whether_it_trained(
    make_phases: Make, tmp_path: Path
) -> None:
    """Of a run that was killed in its second iteration, too."""
    store = ArtifactStore(tmp_path / "runs" / "store")
    phases = make_phases("quickstart", half_teach, DAPO, store=store)
    state = phases.start()
    groups, rounds = draw(phases, state)
    advantages = phases.advantage(state, groups)
    state = phases.sync(phases.update(state, groups, advantages))
    phases.rollout(state, DrawnGroups(wanted=phases.recipe.rl.rollout.prompts))

    run = read(phases, tmp_path / "runs")
    assert run.iterations == [1, 2]
    first = run.trajectories(1)
    assert first.height == sum(map(len, rounds)) * SAMPLES
    drawn = first.group_by("round", maintain_order=True).agg(pl.col("uid").unique())
    assert [set(uids) for uids in drawn["uid"]] == rounds
    assert set(first.filter("kept")["uid"]) == set(groups.kept)
    assert first["kept"].sum() == PROMPTS * SAMPLES == run.advantages(1).height
    assert first.filter("kept")["advantages"].null_count() == 0
    assert first.filter(~pl.col("kept"))["advantages"].null_count() == first.height - 16
    for row in first.iter_rows(named=True):
        expected = float(row["sample"] % 2) if _is_even(row["uid"]) else 1.0
        assert row["score"] == expected

    second = run.trajectories(2)
    assert second.height == run.rollouts(2).height > 0
    unknown = second.select("score", "advantages", "kept").null_count().row(0)
    assert unknown == (second.height,) * 3
    assert run.rewards(2).columns == run.rewards(1).columns
    assert run.rewards(2).height == run.advantages(2).height == 0
    whole = run.trajectories()
    assert whole.equals(pl.concat([first, second]))
    with pytest.raises(UserError, match=r"'small-0123abcd' has no rollouts of iteration 3; it has"):
        run.rewards(3)


def test_what_was_made_from_rollouts_that_are_gone_is_not_read(
    make_phases: Make, tmp_path: Path
) -> None:
    """A killed attempt's advantages would stand beside trajectories that they are not of."""
    store = ArtifactStore(tmp_path / "runs" / "store")
    phases = make_phases("quickstart", half_teach, DAPO, store=store)
    state = phases.start()
    groups, rounds = draw(phases, state)
    phases.advantage(state, groups)
    last = groups.rounds[-1][0]
    fewer = store.table(last, "rollouts").head(SAMPLES)
    phases.records.put("rollouts", last.key, {"rollouts": fewer}, {})

    run = read(phases, tmp_path / "runs")
    assert run.advantages(1).height == 0
    assert run.rewards(1)["round"].unique().sort().to_list() == list(range(len(rounds) - 1))
    assert run.trajectories(1).filter(pl.col("round") == len(rounds) - 1).height == SAMPLES
    assert run.trajectories(1)["kept"].null_count() == run.trajectories(1).height
