"""Which prompts an iteration takes: an endless stream of seeded permutations, addressed by
position."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from rlcore.rl.prompts import PromptRows
from rlcore.seeds import stream_seed
from schemas.errors import UserError
from schemas.rl import RLSection


@dataclass(frozen=True, slots=True)
class PromptStream:
    """The training prompts in the order that iterations take them; ``seed``: the recipe's."""

    prompts: PromptRows
    rl: RLSection
    seed: int

    @property
    def round_size(self) -> int:
        """Prompts of one generation round; at most all there are."""
        wanted, dynamic = self.rl.rollout.prompts, self.rl.algorithm.dynamic_sampling
        if dynamic is None:
            return wanted
        return max(wanted, min(wanted * dynamic.batch_factor, self.prompts.height))

    def round(self, *, cursor: int, drawn: int) -> pl.DataFrame:
        """Return the prompts of the next round of the iteration that began at ``cursor`` and has
        used ``drawn`` places; none where every prompt was drawn (``draw_round``)."""
        rows = draw_round(
            self.prompts.height,
            cursor=cursor,
            drawn=drawn,
            count=self.round_size,
            seed=self.seed,
        )
        return self.prompts.take(rows)


def take_prompts(num_prompts: int, *, cursor: int, count: int, seed: int) -> np.ndarray:
    """Return ``count`` row numbers (int64) at stream positions ``cursor .. cursor + count - 1``.

    Epoch ``e`` is a permutation of ``num_prompts`` drawn from (seed, e), so a position means the
    same prompt in every process: a resume neither repeats nor skips data. An epoch ends with its
    last whole iteration (drop_last), so that no iteration takes a prompt twice. Raises UserError
    when one iteration needs more prompts than there are.
    """
    if count > num_prompts:
        raise UserError(
            f"rl.rollout.prompts = {count} exceeds the {num_prompts} training prompts; lower it or"
            " add data"
        )
    positions = np.arange(cursor, cursor + count)
    epochs, offsets = np.divmod(positions, num_prompts - num_prompts % count)
    rows = np.empty(count, dtype=np.int64)
    for epoch in np.unique(epochs):
        order = np.random.default_rng(stream_seed(seed, "prompts", int(epoch))).permutation(
            num_prompts
        )
        chosen = epochs == epoch
        rows[chosen] = order[offsets[chosen]]
    return rows


def draw_round(num_prompts: int, *, cursor: int, drawn: int, count: int, seed: int) -> np.ndarray:
    """Return the row numbers that the next generation round of an iteration takes.

    The iteration began at ``cursor`` and has used ``drawn`` places in rounds of ``count``. A row of
    an earlier round is left out, so that no prompt is repeated within the iteration even where it
    crosses into the next epoch; the result may be shorter than ``count``, or empty.
    """
    rounds = [
        take_prompts(num_prompts, cursor=cursor + start, count=count, seed=seed)
        for start in range(0, drawn + 1, count)
    ]
    *earlier, rows = rounds
    return rows[~np.isin(rows, np.concatenate(earlier))] if earlier else rows
