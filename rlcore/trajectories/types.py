"""One episode: what is asked for, and what came of it.

Producer: ``collect``. Consumers: the rollout phase, validation, evaluation, sampled preferences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlcore.engines.types import Generation
from rlcore.rewards.types import RewardRow


@dataclass(frozen=True, slots=True)
class Request:
    """An episode to sample: ``prompt``, a row of the Prompts table, for the ``sample``-th time.

    ``seed`` decides every token of it, so an episode can be drawn again alone.
    """

    trajectory_id: str
    prompt: Mapping[str, Any]
    sample: int
    seed: int


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One sampled episode. ``text``: its policy tokens decoded, special tokens dropped; for
    rewards and people, training reads token ids."""

    request: Request
    generation: Generation
    text: str

    def reward_row(self) -> RewardRow:
        """Return what is scored."""
        return RewardRow.of_prompt(
            self.request.prompt,
            trajectory_id=self.request.trajectory_id,
            response=self.text,
            generation=self.generation,
        )
