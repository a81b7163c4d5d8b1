"""The sync phase: the learner's weights reach every engine, and each proves what it loaded.

Two proofs, of different things. The digest is taken where an engine's loader is handed each tensor:
nothing was lost, swapped or changed on the way. The canary, a few tokens whose log-probs learner
and engines compute, sees what the loader made of them: a layer that kept old weights, a
tied head, a tensor that is never sent (a new engine holds noise, see ``RolloutEngine``). In
bfloat16 one step changes too few elements for a canary or the sampler gap to see; the digest does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from rlcore.engines.pool import EnginePool
from rlcore.learner.pool import LearnerFuture, LearnerPool
from rlcore.learner.spec import TokenScores
from rlcore.models.packing import Sequences
from rlcore.models.ragged import to_arrays
from rlcore.models.weight_digest import WeightSyncError, WeightUpdate
from schemas.recipe import Recipe
from schemas.rl import GapBound

CANARY_TOKENS = 32
CANARY_GAP = "training/canary_logprobs_gap"  # the metric


@dataclass(frozen=True, slots=True)
class Canary:
    """Token ids whose log-probs learner and engines must agree on, and how far."""

    ids: np.ndarray
    bound: GapBound

    @classmethod
    def of_prompts(cls, prompts: pl.DataFrame, recipe: Recipe) -> "Canary":
        """Return the first ``CANARY_TOKENS`` tokens of ``prompts`` one after the other, as many as
        the context holds; prompts that are shorter altogether repeat."""
        length = min(CANARY_TOKENS, recipe.model.max_tokens - 1)
        tokens = np.concatenate(to_arrays(prompts["prompt_ids"].head(length)))
        return cls(np.resize(tokens, length).astype(np.int64), recipe.canary_bound)


@dataclass(frozen=True, slots=True)
class Offered:
    """Published weights, and the learner's log-probs of the canary under them, once computed."""

    published: WeightUpdate
    learnt: LearnerFuture[TokenScores]


def offer_weights(learner: LearnerPool, canary: Canary, *, kept: int = 1) -> Offered:
    """Publish the learner's weights; the ``kept`` that were published last stay readable.

    They pass through shared memory, so learner rank 0 and the engines share a node.
    """
    published = learner.publish(kept=kept)
    untrained = np.zeros(len(canary.ids), dtype=bool)
    return Offered(published, learner.logprobs(Sequences([canary.ids], [untrained])))


def load_offered(offered: Offered, engines: EnginePool, canary: Canary) -> float:
    """Load ``offered`` into all engines and prove that they sample it; return the largest gap of
    the canary's log-probs, in nats.

    Raises WeightSyncError naming the engine, and the tensors where the digests tell them, when an
    engine was handed anything but what the learner holds or answers the canary otherwise.
    """
    loaded = engines.start_load(offered.published)
    probed = engines.start_probe([canary.ids.tolist()])  # each engine, as soon as it has loaded
    # The first wait: until here learner and engines work at the same time.
    loaded()
    return check_canary(offered.learnt.result().logprobs[0], probed(), canary)


def sync_weights(
    learner: LearnerPool, engines: EnginePool, canary: Canary, *, kept: int = 1
) -> tuple[Offered, float]:
    """``offer_weights`` and ``load_offered`` at once: return what both do."""
    offered = offer_weights(learner, canary, kept=kept)
    return offered, load_offered(offered, engines, canary)


def check_canary(
    learnt: np.ndarray, probed: Mapping[str, list[list[float]]], canary: Canary
) -> float:
    """Return the largest gap of ``probed``, the engines' log-probs by name (one row, which
    begins at the second token), to ``learnt``, the learner's [tokens], in nats.

    Raises WeightSyncError naming the engine above ``canary.bound``.
    """
    bound, gaps = canary.bound, []
    for engine, (row,) in probed.items():
        gap = np.abs(np.asarray(row) - learnt[1:])
        gaps.append(float(gap.max() if bound.measure == "max" else gap.mean()))
        # Not ``>``, which a gap of NaN would pass.
        if not gaps[-1] <= bound.limit:
            raise WeightSyncError(
                f"rollout engine '{engine}' was handed the learner's weights, and its log-probs of"
                f" {len(row)} canary tokens are not the learner's: {bound.measure} |gap| ="
                f" {gaps[-1]:.3g} nats, above {bound.option} = {bound.limit:g}; a layer does not"
                " use what was loaded, or numerics differ: rerun to sync again, or raise the bound"
                " if the device's precision explains it"
            )
    return max(gaps)
