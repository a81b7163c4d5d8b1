"""How the golden tests compare: our numbers, batch by batch, with those of the oracles."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from rlcore.algorithms.aggregation import token_weights
from tests.golden import batches as made

HERE = Path(__file__).parent
TOLERANCE = 1e-6  # of the value, or absolute below 1
VERSIONS = json.loads((HERE / "VERSIONS.json").read_text(encoding="utf-8"))


@cache
def family(name: str) -> list:
    return [made.FAMILIES[name](number) for number in range(made.NUM_BATCHES)]


@cache
def goldens() -> dict[str, np.ndarray]:
    numbers: dict[str, np.ndarray] = {}
    for path in sorted(HERE.glob("*.npz")):
        with np.load(path) as content:
            numbers |= {name: content[name] for name in content.files}
    return numbers


def assert_golden(
    name: str, ours: list[np.ndarray], counted: list[np.ndarray] | None = None
) -> None:
    """Compare one array per batch; ``counted`` leaves out entries that the oracle does not
    define."""
    expected = goldens()[name]
    sizes = [np.size(each) for each in ours]
    found = np.concatenate([np.ravel(each) for each in ours]).astype(np.float64)
    assert found.shape == expected.shape, f"{name}: {found.shape} numbers, golden {expected.shape}"
    error = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    error[np.isnan(found)] = np.inf
    if counted is not None:
        error[~np.concatenate(counted)] = 0.0
    worst = int(error.argmax())
    batch = int(np.repeat(np.arange(len(sizes)), sizes)[worst])
    assert error[worst] <= TOLERANCE, (
        f"{name}: batch {batch} gives {found[worst]!r}, {VERSIONS['oracles'][name.split('/')[0]]} "
        f"gives {expected[worst]!r}; {np.count_nonzero(error > TOLERANCE)} of {len(error)} differ"
    )


@dataclass(frozen=True)
class Tokens:
    """The policy tokens of all token batches, one after another."""

    batch: np.ndarray  # [tokens] number of the batch
    rows: torch.Tensor  # [tokens] int64, another for every row of every batch

    def field(self, name: str) -> torch.Tensor:
        return torch.from_numpy(
            np.concatenate([vars(b)[name][b.shape.mask] for b in family("token")])
        )

    def row_field(self, name: str) -> torch.Tensor:
        """A field of rows, on each of their tokens."""
        spread = [vars(b)[name][b.shape.rows][b.shape.mask] for b in family("token")]
        return torch.from_numpy(np.concatenate(spread))

    def per_batch(self, values: torch.Tensor) -> list[np.ndarray]:
        """The sum over each batch's tokens."""
        sums = np.bincount(self.batch, weights=values.detach().numpy(), minlength=made.NUM_BATCHES)
        return list(sums[:, None])

    def split(self, values: torch.Tensor) -> list[np.ndarray]:
        """The tokens of each batch."""
        return np.split(values.detach().numpy(), np.flatnonzero(np.diff(self.batch)) + 1)


@cache
def tokens() -> Tokens:
    items = family("token")
    offsets = np.concatenate([[0], np.cumsum([len(b.shape.lengths) for b in items])])
    rows = [b.shape.rows[b.shape.mask] + start for b, start in zip(items, offsets, strict=False)]
    number = np.repeat(np.arange(len(items)), [len(each) for each in rows])
    return Tokens(number, torch.from_numpy(np.concatenate(rows)))


def weights_of(mode_of: Callable[[int], str]) -> torch.Tensor:
    """[tokens] the weight of each token in its batch's loss."""
    parts = []
    for number, batch in enumerate(family("token")):
        weights = token_weights(
            mode_of(number), batch.shape.counts, horizon=made.HORIZON, groups=batch.group_ids
        )
        parts.append(weights[batch.shape.rows][batch.shape.mask])
    return torch.from_numpy(np.concatenate(parts))


def assert_loss(
    golden: str,
    leaf: torch.Tensor,
    loss_of: Callable[[torch.Tensor, int], torch.Tensor],
    num_settings: int,
    setting_of: Callable[[int], int],
    weights: torch.Tensor,
) -> None:
    """Compare loss and gradient; ``loss_of(leaf, index of a setting)`` is the loss per token."""
    leaf = leaf.clone().requires_grad_()
    index = torch.from_numpy(np.array([setting_of(n) for n in range(made.NUM_BATCHES)]))
    index = index[torch.from_numpy(tokens().batch)]
    loss = torch.stack([loss_of(leaf, one) for one in range(num_settings)])
    loss = weights * loss.gather(0, index[None])[0]
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    assert_golden(f"{golden}/loss", tokens().per_batch(loss))
    assert_golden(f"{golden}/grad", tokens().split(gradient))
