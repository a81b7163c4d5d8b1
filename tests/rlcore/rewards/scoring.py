"""What the tests of reward workers share: a worker as its pool calls it, rows, outcomes."""

from collections.abc import Callable
from pathlib import Path

from rlcore.cluster.in_process import InProcessWorker
from rlcore.rewards.judges.setup import JudgeSetup
from rlcore.rewards.pool import RewardPool
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rewards.worker import RewardWorker
from schemas.rl import RewardSection

HERE = Path(__file__).parent


class Scoring:
    """A worker as its pool calls it."""

    def __init__(self, section: RewardSection, judges: JudgeSetup | None = None) -> None:
        self.section = section
        self.worker = RewardWorker(section, judges)

    def score(self, rows: list[RewardRow], timeout_s: float) -> list[Reward]:
        limited = self.section.model_copy(update={"timeout_s": timeout_s})
        handle = InProcessWorker.of("reward", self.worker)
        return RewardPool([handle], limited, timeout_s=60).score(rows)

    def close(self) -> None:
        self.worker.close()


Start = Callable[..., Scoring]


def rows(*responses: str) -> list[RewardRow]:
    return [
        RewardRow(f"t{index}", "source", response, "72", {}, "stop", 3, "prompt")
        for index, response in enumerate(responses)
    ]


def outcomes(rewards: list[Reward]) -> list[tuple[str, float | None]]:
    return [(reward.outcome, reward.score) for reward in rewards]


OK = ("ok", 1.0)
TIMEOUT = ("timeout", None)
ERROR = ("error", None)
