"""What the ranks agree on before an optimizer step: global counts and the number of passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlcore.algorithms.aggregation import Totals, token_weights
from rlcore.algorithms.objective_types import Objective
from rlcore.learner.spec import Term
from rlcore.models.packing import MicroBatch, Sequences
from schemas.errors import UserError


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's message to the others about a term: its counts, or why it cannot take part."""

    totals: Totals
    scored_targets: int  # targets that pass through the model
    num_passes: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Offer:
    """A rank's own work for a term, and the share of it that the others need to know."""

    share: Share
    batches: list[MicroBatch]
    fields: dict[str, np.ndarray]
    squared_lengths: int


@dataclass(frozen=True, slots=True)
class TermPlan:
    """A rank's work for one term, given all shares.

    ``weights`` and ``fields``: [tokens of all this rank's sequences] float32. ``groups``
    [sequences] int64, empty where the batch names none. ``mean_weight``: 1 / scored targets.
    ``squared_lengths``: the sum of the packed sequences' squared lengths.
    """

    objective: Objective
    coef: float
    batches: list[MicroBatch]
    weights: np.ndarray
    mean_weight: float
    fields: dict[str, np.ndarray]
    groups: np.ndarray
    squared_lengths: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A rank's work in one step; every rank makes ``num_passes``, of which some may be idle."""

    terms: list[TermPlan]
    num_passes: int


def plan_step(
    terms: Sequence[Term],
    pack_rows: Callable[[Term, np.ndarray], list[MicroBatch]],
    exchange: Callable[[list[Share]], list[list[Share]]],
) -> StepPlan:
    """Agree with the other ranks on counts and passes, and plan this rank's work.

    ``pack_rows`` packs a term's sequences at the given indices; ``exchange`` returns every rank's
    shares. Raises the same ``UserError`` on every rank when one could not pack its share or a term
    has no token to train on.
    """
    names = [term.objective.name for term in terms]
    assert 0 < len(names) == len(set(names)), "a step has terms, each with its own name"
    offers = [_offer(term, pack_rows) for term in terms]
    shares_RT = exchange([offer.share for offer in offers])
    plans = [
        _plan_term(term, offer, [shares[index] for shares in shares_RT])
        for index, (term, offer) in enumerate(zip(terms, offers, strict=True))
    ]
    # Passes are collective: a rank with fewer adds idle ones, or the others would wait for it.
    num_passes = max(sum(share.num_passes for share in shares) for shares in shares_RT)
    return StepPlan(plans, max(1, num_passes))


def _offer(term: Term, pack_rows: Callable[[Term, np.ndarray], list[MicroBatch]]) -> Offer:
    """Prepare this rank's share of ``term``.

    A ``UserError`` is put into the share instead of raised: raised on one rank only, it would leave
    the others waiting.
    """
    sequences, objective = term.sequences, term.objective
    lengths = sequences.target_lengths(objective.targets)
    # Before rows are left out: one of advantage 0 has no gradient and is in the mean all the same.
    totals = Totals.of(lengths, sequences.groups)
    try:
        fields = _flat_fields(sequences, objective.fields)
        trains = lengths > 0
        live = objective.rows_with_gradient(sequences.per_token)
        if live is not None:
            trains &= live
        kept = np.flatnonzero(trains)
        batches = pack_rows(term, kept)
    except UserError as problem:
        return Offer(Share(totals, 0, 0, str(problem)), [], {}, 0)
    scored = int(lengths[kept].sum())
    squared = int((sequences.lengths[kept].astype(np.int64) ** 2).sum())
    return Offer(Share(totals, scored, len(batches), None), batches, fields, squared)


def _plan_term(term: Term, offer: Offer, shares: Sequence[Share]) -> TermPlan:
    """Return this rank's plan of ``term``, made of all ranks' shares."""
    for share in shares:
        if share.error is not None:
            raise UserError(share.error)
    sequences, objective = term.sequences, term.objective
    weights = token_weights(
        objective.aggregation,
        sequences.target_lengths(objective.targets),
        # Of all ranks: a rank's share is then a part of one sum, not a separate mean.
        Totals.added(share.totals for share in shares),
        objective.horizon,
        sequences.groups,
    )
    groups = np.zeros(0) if sequences.groups is None else sequences.groups
    return TermPlan(
        objective=objective,
        coef=term.coef,
        batches=offer.batches,
        weights=np.repeat(weights, sequences.lengths).astype(np.float32),
        # Metrics are means over what was computed, without the rows that were left out.
        mean_weight=1.0 / max(1, sum(share.scored_targets for share in shares)),
        fields=offer.fields,
        groups=np.asarray(groups, dtype=np.int64),
        squared_lengths=offer.squared_lengths,
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
