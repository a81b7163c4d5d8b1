"""What both engines check before they load an update: the file is what was stamped, and fits."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlcore.models.digest import read_state, state_digest
from rlcore.rollout.types import WeightSyncError
from schemas.errors import did_you_mean

if TYPE_CHECKING:
    import torch


def read_update(
    path: str, digest: str, expected: Mapping[str, tuple[int, ...]]
) -> "dict[str, torch.Tensor]":
    """Return the tensors of the update file ``path``, proven to be the ones that were sent.

    ``digest`` is the ``state_digest`` the learner stamped, ``expected`` the model's own tensors
    (name -> shape). Raises ``WeightSyncError`` when digest, names or shapes differ, ``UserError``
    when the file cannot be read.
    """
    state = read_state(path)
    found = state_digest(state.items())
    if found != digest:
        raise WeightSyncError(
            f"weights file {path} was sent with digest {digest[:12]} and holds {found[:12]}: it "
            "changed after the learner stamped it; publish the weights again"
        )
    missing, foreign = expected.keys() - state.keys(), state.keys() - expected.keys()
    if missing:
        raise WeightSyncError(
            f"weights file {path} lacks {len(missing)} of {len(expected)} tensors, first "
            f"'{min(missing)}'; send the whole canonical state"
        )
    if foreign:
        name = min(foreign)
        raise WeightSyncError(
            f"weights file {path} holds '{name}', which the model does not have; send the "
            f"canonical state, shared tensors once{did_you_mean(name, expected)}"
        )
    for name in sorted(expected):
        shape = tuple(state[name].shape)
        if shape != expected[name]:
            raise WeightSyncError(
                f"weights file {path} holds '{name}' of shape {shape} and the model's is "
                f"{expected[name]}; build learner and engine from the same model"
            )
    return state
