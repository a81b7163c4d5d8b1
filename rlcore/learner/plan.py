"""What the ranks agree on before an optimizer step: global counts, and how many passes to make."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlcore.algorithms.aggregation import Totals, token_weights
from rlcore.algorithms.objective import Objective
from rlcore.models.packing import MicroBatch, Sequences
from schemas.errors import UserError


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank tells the others: its counts, or why it cannot take part."""

    totals: Totals
    scored_tokens: int  # loss tokens that pass through the model
    num_passes: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Offer:
    """A rank's own work, and what of it the others need to know."""

    share: Share
    batches: list[MicroBatch]
    fields: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A rank's work in the light of all shares.

    ``batches`` may be fewer than ``num_passes``, which is the same on every rank. ``weights`` and
    ``fields``: [tokens of all this rank's sequences] float32. ``mean_weight``: 1 / scored tokens.
    """

    batches: list[MicroBatch]
    num_passes: int
    weights: np.ndarray
    mean_weight: float
    fields: dict[str, np.ndarray]


def offer_share(
    sequences: Sequences, objective: Objective, pack_rows: Callable[[np.ndarray], list[MicroBatch]]
) -> Offer:
    """Prepare this rank's share; ``pack_rows`` packs the sequences at the given indices.

    A ``UserError`` goes into the share instead of up: raised here alone it would leave the other
    ranks waiting.
    """
    lengths = sequences.loss_lengths
    totals = Totals.of(lengths)
    try:
        fields = _flat_fields(sequences, objective.fields)
        trains = lengths > 0
        live = objective.rows_with_gradient(sequences.per_token)
        if live is not None:
            trains &= live
        kept = np.flatnonzero(trains)
        batches = pack_rows(kept)
    except UserError as problem:
        return Offer(Share(totals, 0, 0, str(problem)), [], {})
    scored = int(lengths[kept].sum())
    return Offer(Share(totals, scored, len(batches), None), batches, fields)


def settle(
    offer: Offer, shares: Sequence[Share], sequences: Sequences, objective: Objective
) -> StepPlan:
    """Turn all ranks' shares into this rank's plan.

    Raises ``UserError``, alike on every rank, when one could not pack its share or none has a token
    to train on.
    """
    for share in shares:
        if share.error is not None:
            raise UserError(share.error)
    totals = Totals(
        tokens=sum(share.totals.tokens for share in shares),
        rows=sum(share.totals.rows for share in shares),
    )
    weights = token_weights(
        objective.aggregation, sequences.loss_lengths, totals, objective.horizon
    )
    return StepPlan(
        batches=offer.batches,
        num_passes=max(1, *(share.num_passes for share in shares)),
        weights=np.repeat(weights, sequences.lengths).astype(np.float32),
        mean_weight=1.0 / max(1, sum(share.scored_tokens for share in shares)),
        fields=offer.fields,
    )


def _flat_fields(sequences: Sequences, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return each named per-token field as one float32 array over all sequences."""
    missing = [name for name in names if name not in sequences.per_token]
    if missing:
        raise UserError(
            f"the objective reads per_token['{missing[0]}'] and the batch has "
            f"{', '.join(sorted(sequences.per_token)) or 'no per-token field'}; compute it first"
        )
    if not len(sequences):
        return {name: np.zeros(0, dtype=np.float32) for name in names}
    return {
        name: np.concatenate(sequences.per_token[name]).astype(np.float32, copy=False)
        for name in names
    }
