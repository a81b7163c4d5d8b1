"""What each algorithm minimises, for tests that must hold for all of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlcore.algorithms.losses import pair_weights
from rlcore.algorithms.objective import (
    PolicyObjective,
    PreferenceObjective,
    SftObjective,
    ValueObjective,
)
from rlcore.algorithms.objective_types import Objective
from rlcore.learner.spec import LearnerSpec, Term
from rlcore.models.packing import Sequences
from schemas.algorithm import Rejection
from tests.rlcore.learner.samples import make_batch

PTX_COEF = 4.0
SEQUENCE = "seq-mean-token-mean"
VALUE_FIELDS = ("ranks", "pair_weights")  # read at the last token, not on the loss mask


def unclipped(ratio, logprobs, advantages, **clips):
    """A user's policy loss."""
    return -advantages * ratio


ALGORITHMS: dict[str, list[Objective]] = {
    "sft": [SftObjective()],
    "ppo": [PolicyObjective(kl_coef=0.05, kl_estimator="k1", entropy_coef=0.01)],
    "grpo": [PolicyObjective(aggregation=SEQUENCE, kl_coef=0.05, kl_estimator="k3")],
    "dr.grpo": [
        PolicyObjective(
            aggregation="seq-mean-token-sum-norm", horizon=40, kl_coef=0.05, kl_estimator="k2"
        )
    ],
    "dapo at T=.7": [PolicyObjective(clip_high=0.28, clip_dual=10.0, temperature=0.7)],
    "dapo per group": [PolicyObjective(clip_high=0.28, aggregation="group-token-mean")],
    "gspo": [
        PolicyObjective(
            ratio_level="sequence",
            aggregation=SEQUENCE,
            clip_dual=None,
            kl_coef=0.05,
            kl_estimator="k3+",
        )
    ],
    "gspo-token": [
        PolicyObjective(
            ratio_level="sequence-token",
            aggregation=SEQUENCE,
            clip_dual=None,
            kl_coef=0.05,
            kl_estimator="k1+",
        )
    ],
    "gepo": [PolicyObjective(ratio_level="group", aggregation=SEQUENCE, clip_dual=None)],
    "cispo": [PolicyObjective(policy_loss="cispo", kl_coef=0.05, kl_estimator="abs")],
    "reinforce, corrected": [
        PolicyObjective(
            policy_loss="reinforce",
            aggregation="seq-mean-token-sum",
            importance_level="sequence",
        )
    ],
    "masked": [
        PolicyObjective(
            importance_level="token",
            importance_mode="mask",
            importance_low=0.6,
            importance_cap=1.6,
            reject=(Rejection(statistic="geometric", low=0.9, high=1.1),),
            entropy_coef=None,
        )
    ],
    "full kl": [PolicyObjective(kl_coef=0.5, kl_estimator="full", temperature=0.7)],
    "vapo": [PolicyObjective(clip_high=0.28, nll_coef=0.5)],
    "user loss": [PolicyObjective(policy_loss=f"{__name__}:unclipped")],
    "critic": [ValueObjective(clip=0.1)],
    "reward model": [PreferenceObjective()],
    "ppo-ptx": [PolicyObjective(), SftObjective(name="ptx")],
}


def algorithm_batch(num_sequences: int = 13, seed: int = 0) -> Sequences:
    """``make_batch`` with every field of every algorithm; one row has nothing to train on, and two
    of four groups answer one prompt each."""
    batch = with_shared_prompts(make_batch(num_sequences, seed), 4)
    generator = np.random.default_rng(seed + 1)
    masks = [np.zeros_like(mask) if row == 3 else mask for row, mask in enumerate(batch.loss_mask)]
    groups = np.arange(num_sequences, dtype=np.int64) % 4 + 100
    ranks = generator.integers(0, 3, num_sequences)
    right = generator.integers(0, 2, num_sequences)
    right[:2] = 0, 1
    count = sum(int(mask.sum()) for mask, ok in zip(masks, right, strict=True) if ok)

    def spread(per_row: np.ndarray) -> list[np.ndarray]:
        return [
            np.full(len(row), value, dtype=np.float32)
            for row, value in zip(batch.token_ids, per_row, strict=True)
        ]

    fields = {
        "group_log_expectation": spread(-4.0 + 0.1 * (groups - 100)),
        "nll_weights": spread(right / count),
        "ranks": spread(ranks),
        "pair_weights": spread(pair_weights(ranks, groups)),
    }
    return replace(batch, loss_mask=masks, per_token={**batch.per_token, **fields}, groups=groups)


def with_shared_prompts(batch: Sequences, num_groups: int) -> Sequences:
    """Let every second of ``num_groups`` groups, which are every so many rows, begin alike."""
    ids, masks = [row.copy() for row in batch.token_ids], list(batch.loss_mask)
    for group in range(0, min(num_groups, len(batch)), 2):
        rows = range(group, len(batch), num_groups)
        shared = min(int(np.argmax(masks[row])) for row in rows)
        for row in rows:
            ids[row][:shared] = ids[group][:shared]
            masks[row] = np.arange(len(masks[row])) >= shared
    return replace(batch, token_ids=ids, loss_mask=masks)


def terms_of(name: str, batch: Sequences) -> list[Term]:
    """The algorithm's terms on ``batch``; pretraining text is a batch of its own."""
    objectives = ALGORITHMS[name]
    terms = [Term(batch, objectives[0])]
    return terms + [Term(make_batch(5, 9), extra, coef=PTX_COEF) for extra in objectives[1:]]


def suited(spec: LearnerSpec, name: str, value_dir: Path, reference_dir: Path) -> LearnerSpec:
    """``spec`` with the model that the algorithm trains."""
    objective = ALGORITHMS[name][0]
    if objective.head == "value":
        return replace(spec, head="value", model_dir=str(value_dir))
    if objective.full_kl:
        return replace(spec, reference_dir=str(reference_dir))
    return spec


def shuffled(terms: Sequence[Term]) -> list[Term]:
    """Other row order, same terms."""
    generator = np.random.default_rng(3)
    return [
        replace(term, sequences=term.sequences.take(generator.permutation(len(term.sequences))))
        for term in terms
    ]


def poisoned(terms: Sequence[Term], poison: float) -> list[Term]:
    """``poison`` wherever a field is not to be read."""
    return [replace(term, sequences=_poisoned(term.sequences, poison)) for term in terms]


def _poisoned(batch: Sequences, poison: float) -> Sequences:
    lasts = [np.arange(len(row)) == len(row) - 1 for row in batch.token_ids]
    per_token = {
        name: [
            np.where(read, row, np.float32(poison))
            for read, row in zip(
                lasts if name in VALUE_FIELDS else batch.loss_mask, rows, strict=True
            )
        ]
        for name, rows in batch.per_token.items()
    }
    return replace(batch, per_token=per_token)
