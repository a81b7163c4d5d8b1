"""What an objective is, what it is given, and what it returns.

Axes: ``targets`` = the loss tokens of one micro-batch, flat (or, for targets "last", one entry per
sequence). Positions outside the loss mask are never gathered, so no value there (NaN, 1e9) can
reach a loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch


def _nothing() -> torch.Tensor:
    import torch

    return torch.zeros(0)


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """Outputs of the model for the targets, fp32, [targets] each; empty where not requested.

    A language model's ``logprobs``, ``entropy`` and exact ``kl`` to its reference, in nats at the
    objective's temperature; a value model's ``values``.
    """

    logprobs: torch.Tensor = field(default_factory=_nothing)
    entropy: torch.Tensor = field(default_factory=_nothing)
    kl: torch.Tensor = field(default_factory=_nothing)
    values: torch.Tensor = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """What is known about the targets.

    ``weights`` [targets]: share of each in the loss. ``mean_weight``: 1 / targets passed through
    the model for this objective in this optimizer step, all ranks. ``rows`` [targets] int64:
    sequence of each target; a sequence is never split over micro-batches. ``fields``: [targets]
    each, named in the objective's ``fields``. ``groups`` [targets] int64: prompt group of each;
    empty when the batch names none.
    """

    weights: torch.Tensor
    mean_weight: float
    rows: torch.Tensor
    fields: dict[str, torch.Tensor]
    groups: torch.Tensor = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class Metrics:
    """0-d tensors by name. ``sums`` add up over micro-batches and ranks to the global mean;
    ``maxes`` combine by maximum and are >= 0."""

    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    maxes: dict[str, torch.Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """What the learner minimises. Frozen and picklable: it travels to every rank.

    Derive from it to keep the defaults below. The scalar of a micro-batch is a *sum* of already
    normalised terms: adding over micro-batches and ranks gives the loss of the optimizer step.
    Metrics follow the same rule.
    """

    name: str  # prefix of the metrics the learner adds: <name>/grad_norm, <name>/lr, ...
    aggregation: str  # a mode of ``token_weights``
    horizon: int | None = None  # tokens, for the aggregation that divides by a constant
    temperature: float = 1.0  # logits are divided by it
    head: str = "lm"  # of the model it trains, or "value"
    targets: str = "loss_mask"  # what ``packing.pack`` gathers; or "last" token of each sequence
    whole_groups: bool = False  # whether sequences of a prompt group must share a micro-batch

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the per-token arrays needed besides token ids and loss mask."""
        return ()

    @property
    def entropy_grad(self) -> bool | None:
        """None: no entropy; False: as a metric only; True: with gradient."""
        return None

    @property
    def full_kl(self) -> bool:
        """Whether the loss uses the exact KL to the learner's own frozen reference."""
        return False

    def rows_with_gradient(self, per_token: dict[str, list[np.ndarray]]) -> np.ndarray | None:
        """Return [rows] bool: False if a row's loss is 0 whatever the output; None = all True."""
        return None

    def __call__(
        self, outputs: TokenOutputs, batch: TokenBatch
    ) -> tuple[torch.Tensor, Metrics]: ...
