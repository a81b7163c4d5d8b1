"""The real phases with an environment, from the first turn to the update."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest

from rlcore.models.ragged import to_arrays
from rlcore.rewards.pool import RewardPool
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rl.groups import DrawnGroups
from rlcore.rl.phases import Phases
from schemas.outcomes import Outcome
from schemas.rl import RewardSection
from schemas.tables import TABLES

pytestmark = pytest.mark.timeout(120)
Make = Callable[..., Phases]
ENVIRONMENT = {
    "environment": {
        "name": "tests.rlcore.envs.samples:Counter",
        "max_turns": 2,
        "max_observation_tokens": 8,
        "workers": 2,
    },
    "data.max_prompt_tokens": 48,
    "rl.rollout.max_new_tokens": 8,
    "reward.functions": [{"name": "environment", "weight": 1.0}],
}


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("quickstart-ppo", "lockstep"),
        ("quickstart-remax", "lockstep"),
        ("quickstart-remax", "streaming"),
    ],
)
def test_an_iteration_of_two_turns(make_phases: Make, name: str, schedule: str) -> None:
    settings = {**ENVIRONMENT, "rl.rollout.schedule": schedule}
    phases = make_phases(name, lambda row: float(sum(row.turn_rewards)), settings)
    state = phases.start()
    groups = DrawnGroups(wanted=phases.recipe.rl.rollout.prompts)
    rollouts = phases.rollout(state, groups)
    table = phases.store.table
    sampled, episodes = table(rollouts, "rollouts"), table(rollouts, "episodes")
    TABLES["rollouts"].validate(sampled)
    TABLES["episodes"].validate(episodes)
    assert set(sampled["turn_ends"].list.len()) == {2}
    assert sampled["turn_rewards"].to_list() == [[0.5, 0.5]] * sampled.height
    greedy = table(rollouts, "baselines").height if "baselines" in rollouts.rows else 0
    assert episodes.height == sampled.height + greedy
    roles = [[turn["role"] for turn in turns] for turns in episodes["turns"].to_list()]
    assert roles == [["assistant", "user", "assistant", "user"]] * episodes.height
    rewards = phases.reward(state, rollouts)
    groups = phases.collect(state, groups, rollouts, rewards)
    advantages = phases.advantage(state, groups)
    frame = table(advantages.ref, "advantages").join(sampled, on="trajectory_id")
    for values, mask in zip(
        to_arrays(frame["advantages"]), to_arrays(frame["loss_mask"]), strict=True
    ):
        assert not np.asarray(values)[~np.asarray(mask, dtype=bool)].any(), "observations learn"
    assert phases.update(state, groups, advantages).version == state.version + 1


def row(name: str, rewards: list[float], **fields: object) -> RewardRow:
    plain = RewardRow(name, "task", "text", None, {}, "stop", 3, group="u", turn_rewards=rewards)
    return replace(plain, **fields)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "correct"), [({}, None), ({"success_at": 0.5}, True), ({"success_at": 0.9}, False)]
)
def test_the_environments_rewards_are_a_term_of_the_reward(
    options: dict[str, float], correct: bool | None
) -> None:
    functions = [{"name": "environment", "weight": 2.0, "options": options}]
    section = RewardSection.model_validate({"functions": functions, "offset": 0.25})
    pool = RewardPool([], section, timeout_s=1)
    (reward,) = pool.score([row("a", [0.25, 0.5])])
    assert reward.score == pytest.approx(1.75)
    assert reward.parts == {"environment": 0.75}
    assert reward.correct is correct
    assert reward.outcome == (Outcome.WRONG if correct is False else Outcome.OK)


def test_an_environment_may_score_some_rows_only() -> None:
    functions = [{"name": "environment", "data_sources": ["game"]}]
    section = RewardSection.model_validate({"functions": functions})
    scored, other = RewardPool([], section, timeout_s=1).score(
        [row("a", [1.0], data_source="game"), row("b", [1.0])]
    )
    assert scored.score == 1.0
    assert other.outcome == Outcome.ERROR


def test_rows_of_the_table_are_those_that_were_begun(make_phases: Make) -> None:
    """A reward that was begun when the episode ended is not asked for again."""
    seen: list[RewardRow] = []
    phases = make_phases("quickstart", lambda r: (seen.append(r), 0.0)[1], ENVIRONMENT)
    begun: dict[str, RewardRow] = {}
    phases.workers.rewards.start = lambda r: begun.update({r.trajectory_id: r})  # pyright: ignore[reportAttributeAccessIssue]
    state = phases.start()
    rollouts = phases.rollout(state, DrawnGroups(wanted=phases.recipe.rl.rollout.prompts))
    seen.clear()
    phases.reward(state, rollouts)
    assert {r.trajectory_id: r for r in seen} == begun
    assert pl.Series([len(r.turns) for r in seen]).unique().to_list() == [4]


@pytest.mark.slow
def test_killed_environments_change_no_bit(make_phases: Make) -> None:
    """kill -9 of every environment process between two turns: no token is sampled again."""
    tables, killed_pids = [], list[int]()
    for key, is_killed in (("whole", False), ("killed", True)):
        phases = make_phases("quickstart", lambda r: 0.0, ENVIRONMENT, key=key)
        if is_killed:
            phases.workers.engines.turn = _killing(phases.workers.engines.turn, killed_pids)  # pyright: ignore[reportAttributeAccessIssue]
        state = phases.start()
        rollouts = phases.rollout(state, DrawnGroups(wanted=phases.recipe.rl.rollout.prompts))
        tables.append([phases.store.table(rollouts, name) for name in ("rollouts", "episodes")])
    for whole, killed in zip(*tables, strict=True):
        assert whole.equals(killed)
    assert len(set(killed_pids)) >= 2 * ENVIRONMENT["environment"]["workers"]


@pytest.mark.parametrize("turns", [1, 2])
def test_what_is_begun_ahead_is_what_is_scored(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """Where a row differs from the one that was begun, it would be scored twice."""
    phases = make_phases("quickstart", lambda row: 1.0, ENVIRONMENT if turns == 2 else {})
    rewards, begun, scored = phases.workers.rewards, [], []
    score = rewards.score

    def scoring(rows: list[RewardRow]) -> list[Reward]:
        scored.extend(rows)
        return score(rows)

    state = phases.start()
    monkeypatch.setattr(rewards, "start", begun.append)
    monkeypatch.setattr(rewards, "score", scoring)
    phases.reward(
        state, phases.rollout(state, DrawnGroups(wanted=phases.recipe.rl.rollout.prompts))
    )
    assert {len(row.turns) for row in scored} == {4 if turns == 2 else 0}
    assert sorted(begun, key=_name) == sorted(scored, key=_name)


def _name(row: RewardRow) -> str:
    return row.trajectory_id


def _environments() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # also a zombie
            if "rlcore.envs.child" in " ".join(process.cmdline()):
                found.append(process)
    return found


def _killing(turn: Callable[..., Iterator[Any]], killed: list[int]) -> Callable[..., Iterator[Any]]:
    """Return ``turn`` that kills the environments behind each turn; ``killed`` gets their pids."""

    def killing(shares: Any, sampling: Any) -> Iterator[Any]:
        yield from turn(shares, sampling)
        for process in _environments():
            with suppress(psutil.NoSuchProcess):
                process.kill()
                killed.append(process.pid)

    return killing
