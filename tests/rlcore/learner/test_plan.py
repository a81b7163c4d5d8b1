"""Ranks agree on a step before they begin it: none trains alone, none waits for ever."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlcore.algorithms.objective import PolicyObjective, SftObjective
from rlcore.learner.plan import Share, StepPlan, plan_step
from rlcore.learner.spec import Term
from rlcore.models.packing import MicroBatch, pack
from schemas.errors import UserError
from tests.rlcore.learner.samples import make_batch

Shares = list[Share]


def pack_rows(term: Term, kept: np.ndarray) -> list[MicroBatch]:
    return pack(term.sequences, micro_batch_tokens=64, row_tokens=None, kept=kept)


def shares_of(terms: Sequence[Term]) -> Shares:
    """What a rank with these terms tells the others."""
    told: list[Shares] = []
    plan_step(terms, pack_rows, lambda shares: told.append(shares) or [shares])
    return told[0]


def planned(mine: Sequence[Term], *others: Shares) -> StepPlan:
    return plan_step(mine, pack_rows, lambda shares: [shares, *others])


def weights(plan: StepPlan) -> np.ndarray:
    return plan.terms[0].weights


def test_weights_of_all_ranks_add_up_to_one_mean() -> None:
    """Each normalised by its own tokens alone, two ranks would take steps twice as large."""
    batch = make_batch(8)
    whole = planned([Term(batch, SftObjective())])
    parts = [
        [Term(batch.take(np.array(rows)), SftObjective())] for rows in ([0, 2, 5], [1, 3, 4, 6, 7])
    ]
    told = [shares_of(part) for part in parts]
    plans = [planned(parts[0], told[1]), planned(parts[1], told[0])]
    masks = [np.concatenate(part[0].sequences.loss_mask) for part in parts]
    total = sum(weights(plan)[mask].sum() for plan, mask in zip(plans, masks, strict=True))
    assert total == pytest.approx(1.0)
    assert weights(whole)[np.concatenate(batch.loss_mask)].sum() == pytest.approx(1.0)
    assert plans[0].terms[0].mean_weight == plans[1].terms[0].mean_weight


def test_every_rank_makes_as_many_passes_as_the_busiest() -> None:
    """Collectives are counted: one pass less on one rank and all hang."""
    many, few = [Term(make_batch(9), SftObjective())], [Term(make_batch(1), SftObjective())]
    busy = shares_of(many)
    assert busy[0].num_passes > 1
    assert planned(few, busy).num_passes == planned(many, shares_of(few)).num_passes
    empty = make_batch(1).take(np.array([], dtype=np.int64))
    idle = planned([Term(empty, SftObjective())], busy)
    assert (len(idle.terms[0].batches), idle.num_passes) == (0, busy[0].num_passes)


def test_a_step_with_nothing_to_train_still_makes_a_pass() -> None:
    batch = make_batch(3)
    flat = [np.zeros_like(values) for values in batch.per_token["advantages"]]
    objective = PolicyObjective(skip_zero_advantage=True)
    still = replace(batch, per_token=batch.per_token | {"advantages": flat})
    plan = planned([Term(still, objective)])
    assert (plan.terms[0].batches, plan.num_passes) == ([], 1)


def test_skipped_rows_keep_their_place_in_the_mean() -> None:
    """Left out of the count too, the rows that remain would weigh more."""
    batch = make_batch(6)
    some = [values * (row % 2) for row, values in enumerate(batch.per_token["advantages"])]
    half = replace(batch, per_token=batch.per_token | {"advantages": some})
    skipping, all_rows = (
        planned([Term(half, PolicyObjective(skip_zero_advantage=skip))]) for skip in (True, False)
    )
    assert weights(skipping).tolist() == weights(all_rows).tolist()
    assert sum(b.input_ids.size for b in skipping.terms[0].batches) < sum(
        b.input_ids.size for b in all_rows.terms[0].batches
    )


def test_what_one_rank_cannot_do_is_said_by_all_in_its_words() -> None:
    """Raised on that rank alone it would leave the others waiting in a collective."""
    poor = replace(make_batch(2), per_token={})
    told: list[Any] = []

    def exchange(shares: Shares) -> list[Shares]:
        told.append(shares)
        return [shares]

    with pytest.raises(UserError, match=r"reads per_token\['\w+'\] and the batch has no per-token"):
        plan_step([Term(poor, PolicyObjective())], pack_rows, exchange)
    assert told, "the rank must take part before it fails"
    with pytest.raises(UserError, match=r"reads per_token"):
        planned([Term(make_batch(2), PolicyObjective())], told[0])
