"""Prompts that are wrong in every sample: counted over iterations, rounds and resumes alike."""

from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl
import pytest

from rlcore.rewards.types import RewardRow
from rlcore.rl.batch import beside
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import Phases
from rlcore.rl.unsolved_prompts import NEVER_RIGHT, RECENT, RecentAnswers
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.diagnostics.records import Verdicts, put_iteration, rewards, rollouts


def _drawn(iteration: int, verdicts: Verdicts) -> pl.DataFrame:
    samples = rollouts(iteration, verdicts)
    return beside(samples, rewards(samples, verdicts))


def _share(iterations: Mapping[int, Verdicts], *, least: int = 1) -> list[float | None]:
    recent = RecentAnswers(ArtifactStore("unused"), "run", least=least)
    return [
        recent.metrics(iteration, _drawn(iteration, verdicts)).get(NEVER_RIGHT)
        for iteration, verdicts in iterations.items()
    ]


def test_a_group_without_a_right_sample_counts_once() -> None:
    groups: Verdicts = {"a": [False] * 8, "b": [False, True], "c": [True] * 8, "d": [False] * 2}
    assert _share({1: groups}) == [0.5]


def test_one_sample_per_prompt_speaks_when_prompts_come_round_again() -> None:
    """One wrong sample is what accuracy tells already."""
    wrong: Verdicts = {"a": [False], "b": [True]}
    assert _share({1: wrong, 2: wrong, 3: {"a": [True], "b": [True]}}, least=2) == [None, 0.5, 0.0]


def test_what_is_not_judged_is_not_wrong() -> None:
    assert _share({1: {"a": [None, None], "b": [False, None]}}) == [None]
    assert _share({1: {"a": [None, False, False], "b": [None, True, True]}}) == [0.5]


def test_old_answers_are_forgotten() -> None:
    right: Verdicts = {"b": [True, True]}
    stream = {1: {"a": [False, False]}, **dict.fromkeys(range(2, RECENT + 2), right)}
    shares = _share(stream)
    assert shares[0] == 1.0
    assert shares[1:RECENT] == [0.5] * (RECENT - 1)
    assert shares[RECENT] == 0.0


def test_a_resumed_run_counts_what_an_uninterrupted_one_counts(tmp_path: Path) -> None:
    """All rounds of an iteration, and of this run only."""
    store = ArtifactStore(tmp_path)
    uninterrupted = RecentAnswers(store, "run")
    for iteration in range(1, 5):
        first: Verdicts = {"a": [False] * 2, "b": [iteration == 3] * 2}
        second: Verdicts = {f"c{iteration}": [False, iteration % 2 == 0]}
        uninterrupted.metrics(iteration, _drawn(iteration, {**first, **second}))
        put_iteration(store, "run", iteration, first, second, parents={})
    put_iteration(store, "other", 4, {"a": [True] * 2}, parents={})
    resumed = RecentAnswers(store, "run").answered(4)
    assert resumed.equals(uninterrupted.answered(4))
    assert resumed.rows() == [
        *(("a", 8, 0), ("b", 8, 2)),
        *(("c1", 2, 0), ("c2", 2, 1), ("c3", 2, 0), ("c4", 2, 1)),
    ]


def test_groups_that_dynamic_sampling_leaves_out_count(make_phases: Callable[..., Phases]) -> None:
    """They are just the ones that this is about: none of them is in the batch."""

    def hopeless(uid: str) -> bool:
        return int(uid, 16) % 3 == 0

    def score(row: RewardRow) -> float:
        if "-" not in row.trajectory_id:  # validation
            return 1.0
        _, uid, sample = row.trajectory_id.split("-")
        return 0.0 if hopeless(uid) else float(int(sample) % 2)

    phases = make_phases("quickstart-dapo", score, {"rl.iterations": 2})
    seen: list[float] = []
    iterate(phases, Steps(), lambda state, metrics: seen.append(metrics[NEVER_RIGHT]))
    answered = RecentAnswers(phases.store, "run").answered(2)
    never = answered.filter(right=0)["uid"].to_list()
    assert never
    assert set(never) == {uid for uid in answered["uid"] if hopeless(uid)}
    assert seen[-1] == pytest.approx(len(never) / answered.height)
