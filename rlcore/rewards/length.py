"""The reward ``length``: a linear penalty for long responses, by their tokens."""

from rlcore.rewards.types import Reward, RewardRow, Scorer
from schemas.errors import UserError


def scorer(soft: int, hard: int) -> Scorer:
    """Return the reward function of n sampled tokens, stop token included: 0 up to ``soft``,
    (soft - n) / (hard - soft) up to ``hard``, -1 beyond.

    DAPO arXiv 2503.14476 eq. 13, with L_max = ``hard`` and L_cache = ``hard - soft``; equal limits
    are a step. Raises UserError unless both are whole numbers and 0 <= soft <= hard.
    """
    for name, value in (("soft", soft), ("hard", hard)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UserError(
                f"option {name} = {value!r} of reward 'length' must be a whole number of tokens"
            )
    if soft > hard:
        raise UserError(
            f"option soft = {soft} of reward 'length' exceeds hard = {hard}; the penalty grows from"
            " soft to hard"
        )

    def score(row: RewardRow) -> Reward:
        if row.num_tokens <= soft:
            value = 0.0
        elif row.num_tokens > hard:
            value = -1.0
        else:
            value = (soft - row.num_tokens) / (hard - soft)
        return Reward.of(row, value)

    return score
