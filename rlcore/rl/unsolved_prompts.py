"""Which prompts the policy never gets right: verdicts per prompt over the last iterations."""

import polars as pl

from rlcore.rl.batch import drawn, rounds_of
from rlcore.store.artifacts import ArtifactStore

RECENT = 20  # iterations looked back on
LEAST_ANSWERS = 2  # samples with a verdict before a prompt counts as never answered correctly
NEVER_RIGHT = "critic/never_right_fraction"
_TALLY = {"uid": pl.String, "verdicts": pl.Int64, "right": pl.Int64}


class RecentAnswers:
    """How often each prompt was answered in the last ``RECENT`` iterations of the RL run ``key``,
    and how often correctly.

    Every prompt that was drawn counts, those that dynamic sampling left out included. Iterations
    that this process did not see are read from the store, so a resumed run measures what an
    uninterrupted one does.
    """

    __slots__ = ("_key", "_least", "_store", "_tallies")

    def __init__(self, store: ArtifactStore, key: str, *, least: int = 1) -> None:
        """``least``: prompts below which their share says nothing."""
        self._store, self._key, self._least = store, key, least
        self._tallies: dict[int, pl.DataFrame] = {}

    def metrics(self, iteration: int, frame: pl.DataFrame) -> dict[str, float]:
        """Take in ``frame``, all that ``iteration`` drew; return ``critic/never_right_fraction``.

        It is the share of the ``answered`` prompts whose every sample was wrong. It is left out
        while fewer than ``least`` prompts are answered: where no function checks correctness, and
        with one sample per prompt until prompts come round again.
        """
        self._tallies[iteration] = _tally(frame)
        answered = self.answered(iteration)
        if answered.height < self._least:
            return {}
        return {NEVER_RIGHT: float((answered["right"] == 0).to_numpy().mean())}

    def answered(self, iteration: int) -> pl.DataFrame:
        """Return (uid, verdicts, right) over the ``RECENT`` iterations up to ``iteration``: samples
        with a verdict, and correct ones, of each prompt that has ``LEAST_ANSWERS`` verdicts.

        Those with the most verdicts come first.
        """
        recent = range(max(1, iteration - RECENT + 1), iteration + 1)
        self._tallies = {
            i: self._tallies[i] if i in self._tallies else self._recorded(i) for i in recent
        }
        return (
            pl.concat(self._tallies.values())
            .group_by("uid")
            .sum()
            .filter(pl.col("verdicts") >= LEAST_ANSWERS)
            .sort("verdicts", "uid", descending=[True, False])
        )

    def _recorded(self, iteration: int) -> pl.DataFrame:
        """Return an iteration's tally from its records, all rounds; empty where there are none."""
        advantages = self._store.find("advantages", f"{self._key}/{iteration:06d}")
        if advantages is None:
            return pl.DataFrame(schema=_TALLY)
        rounds = rounds_of(self._store.manifest(advantages).parents)
        return _tally(drawn(self._store.table, rounds))


def _tally(frame: pl.DataFrame) -> pl.DataFrame:
    """Return (uid, verdicts, right) of what an iteration drew."""
    return frame.group_by("uid").agg(
        verdicts=pl.col("correct").count().cast(pl.Int64),
        right=pl.col("correct").sum().cast(pl.Int64),
    )
