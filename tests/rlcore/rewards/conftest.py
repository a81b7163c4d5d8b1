"""Reward workers that end with their test."""

from collections.abc import Iterator

import pytest

from schemas.rl import RewardFunction, RewardSection
from tests.rlcore.rewards.scoring import HERE, Scoring, Start


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.syspath_prepend(str(HERE))
    workers: list[Scoring] = []

    def make(
        name: str = "reward_samples:by_command",
        memory_gib: float = 4.0,
        functions: tuple[RewardFunction, ...] | None = None,
        max_lost: float = 1.0,
    ) -> Scoring:
        functions = functions or (RewardFunction(name=name),)
        section = RewardSection(
            functions=functions,
            memory_gib=memory_gib,
            max_error_fraction=max_lost,
            max_timeout_fraction=max_lost,
        )
        workers.append(Scoring(section))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()
