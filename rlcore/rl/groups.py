"""The groups an iteration learns from: drawn in rounds, kept when their samples differ.

Without dynamic sampling one round fills the batch. With it, a group whose samples all agree is left
out and the next round draws other prompts, until exactly ``rl.rollout.prompts`` groups are kept.
Every round is an artifact, so a killed iteration finds its half-full batch again.
"""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from schemas.algorithm import DynamicSampling
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError


class DynamicSamplingError(UserError):
    """The batch could not be filled with groups whose samples differ."""


@dataclass(frozen=True, slots=True)
class DrawnGroups:
    """What is drawn so far in one iteration.

    ``wanted``: groups that fill the batch. ``rounds``: (rollouts, rewards) of each generation
    round. ``kept`` and ``spare``: uids that passed the filter and that did not, in the order they
    were drawn; no uid twice. ``drawn``: places of the prompt stream used. ``surplus``: groups that
    passed after the batch was full. ``padded``: of ``kept``, those that did not pass.
    ``unscored``: of those that did not pass, groups with fewer than two scored samples.
    ``exhausted``: no further round may be drawn.
    """

    wanted: int
    rounds: tuple[tuple[ArtifactRef, ArtifactRef], ...] = ()
    kept: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    drawn: int = 0
    surplus: int = 0
    padded: int = 0
    unscored: int = 0
    exhausted: bool = False

    @property
    def suffix(self) -> str:
        """What the names of a round's records end with: nothing for the first."""
        return f"-{len(self.rounds)}" if self.rounds else ""

    @property
    def full(self) -> bool:
        """Whether the batch is complete, or as complete as it will get."""
        return len(self.kept) >= self.wanted or self.exhausted

    @property
    def parents(self) -> dict[str, ArtifactRef]:
        """What the batch is made from, by role: rollouts, rewards, rollouts-1, rewards-1, ..."""
        return {
            f"{role}{f'-{index}' if index else ''}": ref
            for index, refs in enumerate(self.rounds)
            for role, ref in zip(("rollouts", "rewards"), refs, strict=True)
        }

    def metrics(self) -> dict[str, float]:
        """Return ``train/*`` over all rounds."""
        processed = len(self.kept) + len(self.spare) + self.surplus
        return {
            "train/filtered_ratio": (len(self.spare) + self.padded) / max(1, processed),
            "train/num_gen_batches": float(len(self.rounds)),
            "train/discarded_groups": float(self.surplus),
            "train/prompts": float(len(self.kept)),
        }

    def with_round(
        self,
        rollouts: ArtifactRef,
        rewards: ArtifactRef,
        *,
        passing: list[str],
        failing: list[str],
        drawn: int,
        unscored: int = 0,
    ) -> "DrawnGroups":
        """Return the groups after a round whose uids passed or failed the filter, in draw order.

        ``unscored``: how many failed for lack of scores.
        """
        room = self.wanted - len(self.kept)
        return replace(
            self,
            rounds=(*self.rounds, (rollouts, rewards)),
            kept=(*self.kept, *passing[:room]),
            spare=(*self.spare, *failing),
            drawn=self.drawn + drawn,
            surplus=self.surplus + len(passing[room:]),
            unscored=self.unscored + unscored,
        )

    def close_if_exhausted(self, section: DynamicSampling, *, more_prompts: bool) -> "DrawnGroups":
        """Return the groups, closed as ``section.on_exhausted`` says when no round may follow.

        Raises DynamicSamplingError when it says "error", or when not one group was kept.
        """
        rounds_left = section.max_rounds <= 0 or len(self.rounds) < section.max_rounds
        if len(self.kept) >= self.wanted or (rounds_left and more_prompts):
            return self
        if section.on_exhausted == "pad_unfiltered":
            padding = self.spare[: self.wanted - len(self.kept)]
            return replace(
                self,
                kept=(*self.kept, *padding),
                spare=self.spare[len(padding) :],
                padded=len(padding),
                exhausted=True,
            )
        if section.on_exhausted == "error" or not self.kept:
            raise DynamicSamplingError(self._why(section, rounds_left=rounds_left))
        return replace(self, exhausted=True)

    def _why(self, section: DynamicSampling, *, rounds_left: bool) -> str:
        """Return why the batch was not filled, and what can change that."""
        place = "rl.algorithm.dynamic_sampling"
        limit = f"{place}.max_rounds = {section.max_rounds}"
        if rounds_left:
            limit = "every training prompt was drawn"
        remedy = (
            "the prompts are too easy or too hard for this policy, or the reward is constant:"
            " change the data or raise rl.rollout.samples"
        )
        if self.kept:
            remedy += f" or set {place}.on_exhausted to 'train_partial'"
        if self.unscored > len(self.spare) / 2:
            remedy = "make the reward score more rows: see outcome and detail in table rewards"
        return (
            f"{len(self.rounds)} generation rounds kept {len(self.kept)} of {self.wanted} groups"
            f" and found {len(self.spare) - self.unscored} whose samples all agree and"
            f" {self.unscored} with fewer than two scored samples ({limit}); {remedy}"
        )


def split_by_signal(
    uids: np.ndarray, values: np.ndarray, *, tolerance: float
) -> tuple[list[str], list[str], int]:
    """Return the uids whose ``values`` differ by more than ``tolerance``, the others, and how many
    of the others have fewer than two scored rows.

    ``values`` [rows] float64, NaN where a row could not be scored; a group with fewer than two
    scored rows has no baseline and does not pass. Order: first appearance.
    """
    spread = (
        pl.DataFrame({"uid": uids, "value": pl.Series(values).fill_nan(None)})
        .group_by("uid", maintain_order=True)
        .agg(spread=pl.col("value").max() - pl.col("value").min(), scored=pl.col("value").count())
        .with_columns(passes=(pl.col("spread") > tolerance) & (pl.col("scored") >= 2))
    )
    passes = pl.col("passes").fill_null(value=False)
    return (
        spread.filter(passes)["uid"].to_list(),
        spread.filter(~passes)["uid"].to_list(),
        spread.filter(pl.col("scored") < 2).height,
    )
