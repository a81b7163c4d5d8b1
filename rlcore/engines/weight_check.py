"""What both engines check of an update: the file fits the model before a layer is touched, and the
model's loader was given exactly the learner's weights."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlcore.models.weight_digest import UNVERIFIED, WeightStamp, WeightSyncError, combined_digest
from rlcore.models.weight_files import read_state
from schemas.errors import did_you_mean

if TYPE_CHECKING:
    import torch

NAMED = 3  # tensors named in a message


def read_update(path: str, expected: "Mapping[str, tuple[int, ...]]") -> "dict[str, torch.Tensor]":
    """Return the tensors of the update file ``path``, memory-mapped, in the model's names.

    ``expected``: the model's own tensors (name -> shape). Raises ``WeightSyncError`` when names or
    shapes differ, ``UserError`` when the file cannot be read.
    """
    state = read_state(path)
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


def verify_handed(handed: Mapping[str, str], sent: Mapping[str, str]) -> str:
    """Return the combined digest of ``handed``, what a ``DigestTap`` took at the model's loader.

    Raises ``WeightSyncError`` naming the tensors in which it differs from ``sent``, the update's.
    """
    lost = sent.keys() - handed.keys()
    if lost:
        raise WeightSyncError(
            f"{len(lost)} of {len(sent)} tensors never reached the model's loader: {_named(lost)};"
            " rerun the flow to sync afresh"
        )
    # Also a tensor that nobody sent: for it ``sent`` has no digest.
    wrong = {name for name in handed if handed[name] != sent.get(name)}
    if wrong:
        raise WeightSyncError(
            f"{len(wrong)} of {len(sent)} tensors reached the model's loader with other bytes than"
            f" the learner holds: {_named(wrong)}; rerun the flow to sync afresh"
        )
    return combined_digest(handed)


def verify_loaded(unloaded: set[str]) -> None:
    """Raise ``WeightSyncError`` naming parameters that no sent tensor was loaded into."""
    if unloaded:
        raise WeightSyncError(
            f"{len(unloaded)} of the model's parameters got no tensor: {_named(unloaded)}; learner"
            " and engine do not run the same model, or the engine's loader skips them"
        )


def require_verified(stamp: WeightStamp) -> None:
    """Raise ``WeightSyncError`` when ``stamp`` is not of verified weights."""
    if stamp == UNVERIFIED:
        raise WeightSyncError(
            "this engine holds no proven weights: none were loaded since it was built, or the last"
            " load was refused; load weights before sampling"
        )


def _named(names: set[str]) -> str:
    first = sorted(names)[:NAMED]
    more = ", ..." if len(names) > NAMED else ""
    return ", ".join(f"'{name}'" for name in first) + more
