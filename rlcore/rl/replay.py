"""The policy of any iteration, also of one whose checkpoint is gone: recorded updates, and
advantages from recorded rewards, made again.

From the nearest kept checkpoint before the iteration, or from the policy that RL began with,
each recorded batch of advantages is given to a learner as the run gave it, so on the same kind of
machine the weights are the recorded ones, bit for bit. After each update the digest is compared
with the record.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from rlcore.learner.checkpoints import KIND as CHECKPOINT
from rlcore.learner.pool import LearnerPool
from rlcore.models.files import model_directory
from rlcore.models.packing import Sequences
from rlcore.models.ragged import from_arrays, to_arrays
from rlcore.models.tokenizer import load_tokenizer
from rlcore.models.weight_digest import tensor_identity
from rlcore.recipes.load import with_learner
from rlcore.results.metrics import KIND as METRICS
from rlcore.rl.advantage import with_advantages
from rlcore.rl.batch import arrays_of, sequences_of
from rlcore.rl.ptx import ptx_of
from rlcore.rl.records import Iteration, RecordedIterations
from rlcore.rl.scores import estimated_kl
from rlcore.rl.update import policy_request, policy_steps
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactError, ArtifactStore
from rlcore.store.versions import VERSION, code_parts, why
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.recipe import Recipe
from schemas.stages import Stage

CREDIT = ("advantages", "returns")  # columns of the table advantages that follow from the rewards
KL_COEF = "actor/reward_kl_penalty_coef"


class CreditError(UserError):
    """Recorded advantages are not those of the recorded rewards."""


def check_credit(
    recorded: RecordedIterations, recipe: Recipe, iteration: int, learner: LearnerPool
) -> None:
    """Raise CreditError, naming the first trajectory, unless the advantages of ``iteration`` are
    those of its rewards.

    Log-probs and values are taken as recorded. ``learner`` holds the weights that the iteration
    sampled with; it is asked for the exact KL only, which is in no table.
    """
    kept = recorded.trained(iteration)
    frame = _with_recorded_kl(kept, recipe, learner)
    made, _ = with_advantages(frame, recipe, _recorded_kl_coef(recorded, iteration))
    for column in CREDIT:
        pairs = zip(to_arrays(kept[column]), to_arrays(made[column]), strict=True)
        for row, (old, new) in enumerate(pairs):
            if not np.array_equal(old, new, equal_nan=True):
                raise CreditError(
                    f"iteration {iteration} of {recorded.name}: {column} of trajectory"
                    f" {kept['trajectory_id'][row]} are not those of the recorded rewards (its"
                    f" score: {kept['score'][row]}); one of the two was changed since"
                )


def _with_recorded_kl(frame: pl.DataFrame, recipe: Recipe, learner: LearnerPool) -> pl.DataFrame:
    """Return a recorded ``frame`` with the column ``kl`` as its learners estimated it."""
    kl, masks = recipe.rl.algorithm.kl, to_arrays(frame["loss_mask"])
    old, ref = arrays_of(frame, "old_logprobs"), arrays_of(frame, "ref_logprobs")
    if old is not None and ref is not None:
        estimate = estimated_kl(old, ref, masks, kl.estimator)
        return frame.with_columns(from_arrays("kl", estimate, pl.Float64))
    if not (kl.uses_reference and kl.where == "reward"):
        return frame
    answer = learner.logprobs(
        sequences_of(frame), recipe.rl.rollout.temperature, targets="loss_mask", full_kl=True
    )
    return frame.with_columns(from_arrays("kl", answer.result().kls, pl.Float32))


def _recorded_kl_coef(recorded: RecordedIterations, iteration: int) -> float | None:
    """Return the coefficient of the KL that was taken from the reward; None where none was."""
    ref = recorded.store.find(METRICS, f"{recorded.key}/{iteration:06d}")
    if ref is None:
        return None
    here = (pl.col("name") == KL_COEF) & (pl.col("step") == iteration)
    found = recorded.store.table(ref, METRICS).filter(here)["value"]
    return found.item() if found.len() else None


SHOWN = 12  # digits of a digest in sentences
NAMED = 3  # tensors that a sentence names


class ReplayError(UserError):
    """What was recorded does not lead to the weights that were recorded."""


@dataclass(frozen=True, slots=True)
class ReplayedIteration:
    """A replayed iteration: the digest of its weights is the recorded one. ``updated``: whether the
    policy was trained in it."""

    iteration: int
    digest: str
    updated: bool


class Replay:
    """A learner that goes through the recorded iterations of a run. Made by ``Replay.open``.

    ``at``: the iteration whose weights ``learner`` holds; ``began``: the first such.
    """

    def __init__(
        self,
        recorded: RecordedIterations,
        recipe: Recipe,
        workers: Workers,
        policy: Path,
        ptx: Sequences | None,
    ) -> None:
        self.recorded, self.recipe = recorded, recipe
        self._workers, self._policy, self._ptx = workers, policy, ptx
        self.learner = self._build()
        self.at = self.began = 0

    @classmethod
    @contextmanager
    def open(
        cls,
        recorded: RecordedIterations,
        recipe: Recipe,
        *,
        start: int,
        log: Callable[[str], None],
    ) -> "Iterator[Replay]":
        """Yield a replay that is at iteration ``start``, or at the nearest one before it that has a
        checkpoint.

        ``recipe``: the run's. The checkpoint is pinned while it is read, so the run, should it
        continue, prunes it later. Raises UserError for an iteration that the run has not come to,
        ArtifactError for damage, ReplayError where the start does not have the recorded weights.
        """
        recorded.iteration(start)
        store = ArtifactStore(recorded.store.root, writer="a replay")
        parents = recorded.iteration(recorded.first).manifest.parents
        if "policy" not in parents:
            raise UserError(
                f"the run '{recorded.name}' does not record the policy that RL began with, as runs"
                " of the Python API do not; a replay has nothing to start from"
            )
        policy = model_directory(store.directory(parents["policy"]))
        with Workers(recipe, warn=log) as workers:
            ptx = ptx_of(recipe.rl.ptx, store, parents["dataset"], load_tokenizer(policy))
            replay = cls(recorded, recipe, workers, policy, ptx)
            at = replay.at = replay.began = _load_nearest(store, recorded, replay.learner, start)
            replay.check(recorded.iteration(at))
            place = f"the checkpoint of iteration {at}" if at else "the policy that RL began with"
            log(f"replay starts from {place}")
            yield replay

    def step(self) -> ReplayedIteration:
        """Replay the next iteration, its advantages from the recorded rewards, too.

        Raises ReplayError or CreditError naming the first thing that differs.
        """
        recorded, recipe = self.recorded, self.recipe
        before, after = (recorded.iteration(self.at + shift) for shift in (0, 1))
        if after.digest_before != before.digest_after:
            raise ReplayError(
                f"iteration {after.number} of {recorded.name} sampled with weights"
                f" {after.digest_before[:SHOWN]} and iteration {before.number} ended with"
                f" {before.digest_after[:SHOWN]}"
            )
        self._pack_for(recorded.packed_for(after.number))
        check_credit(recorded, recipe, after.number, self.learner)
        updated = after.version != before.version
        if updated:
            frame = recorded.trained(after.number)
            request = policy_request(
                frame,
                policy_steps(frame, recipe),
                recipe=recipe,
                version=before.version,
                digest=recorded.advantages(after.number)[0].sha256,
                ptx=self._ptx,
            )
            self.learner.update(request).result()
        self.check(after)
        self.at = after.number
        return ReplayedIteration(after.number, after.digest_after, updated)

    def _build(self) -> LearnerPool:
        rl = self._workers.recipe.rl
        exact = rl.algorithm.kl.uses_reference and rl.algorithm.kl.estimator == "full"
        return self._workers.learner(
            self._policy,
            rl.update.optimizer,
            name="learner",
            stage=Stage.RL,
            reference_dir=self._policy if exact else None,
        )

    def _pack_for(self, tokens: int) -> None:
        """Go on in passes of as many ``tokens`` as an iteration had: others round differently."""
        workers = self._workers
        if tokens == workers.recipe.hardware.learner.micro_batch_tokens:
            return
        with ArtifactStore(self.recorded.store.root).scratch() as scratch:
            self.learner.save(scratch).result()
            workers.release(self.learner)
            workers.recipe = with_learner(workers.recipe, micro_batch_tokens=tokens)
            self.learner = self._build()
            self.learner.load(str(scratch))

    def check(self, expected: Iteration) -> None:
        """Raise ReplayError unless the learner holds the weights of ``expected``, naming the first
        tensors that differ."""
        found = self.learner.stamp()
        if (found.version, found.digest) == (expected.version, expected.digest_after):
            return
        tensors = self.learner.publish().tensors
        differing = [
            name
            for name, digest in tensors.items()
            if expected.weights.get(name) != tensor_identity(digest)
        ]
        named = ", ".join(differing[:NAMED]) or "none by its bytes, only the version"
        raise ReplayError(
            f"iteration {expected.number} of {self.recorded.name}: the replay gives weights"
            f" {found.digest[:SHOWN]} (version {found.version}), recorded are"
            f" {expected.digest_after[:SHOWN]} (version {expected.version}); {len(differing)} of"
            f" {len(tensors)} tensors differ, the first in the model's order: {named}."
            f" {_why(expected)}"
        )


def _why(expected: Iteration) -> str:
    """Return what may have made the weights others."""
    before, now = expected.manifest.metadata.get(VERSION), code_parts("rl")[VERSION]
    if before in (None, now):
        return "Another machine type, other libraries or another layout round differently"
    return f"Version {before} of rl made them and this is version {now}: {why('rl', before, now)}"


def _load_nearest(
    store: ArtifactStore, recorded: RecordedIterations, learner: LearnerPool, start: int
) -> int:
    """Load the newest checkpoint at or before ``start`` that is whole; return its iteration, 0
    where there is none and the learner keeps what it was built with."""
    for step in reversed([step for step in recorded.checkpoints() if 0 < step <= start]):
        key = f"{recorded.key}/{step:06d}"
        with store.pin(CHECKPOINT, key):
            try:
                ref: ArtifactRef | None = store.find(CHECKPOINT, key)
                if ref is not None:
                    learner.load(str(store.directory(ref) / "actor"))
                    return step
            except ArtifactError:
                continue  # damaged: the one before it costs time only
    if recorded.first:
        raise UserError(
            f"the run '{recorded.name}' is a fork, and the checkpoint of iteration"
            f" {recorded.first} that it began with is gone or damaged; there is nothing to start"
            " from"
        )
    return 0
