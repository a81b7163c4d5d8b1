"""What a place of a packed row attends to where answers share the tokens of their prompt."""

import torch
from transformers import DynamicCache, DynamicLayer, PreTrainedModel

from rlcore.models.architectures import caps_attention


def takes_masks(model: PreTrainedModel) -> bool:
    """Return whether every layer of ``model`` attends to all earlier tokens, by transformers' own
    attention and masks; ``model`` then takes a mask of each row's columns as it is."""
    if caps_attention(model.config):
        return False
    layers = DynamicCache(config=model.config).layers
    plain = all(type(layer) is DynamicLayer for layer in layers)
    return plain and bool(layers) and bool(getattr(model, "_supports_attention_backend", False))


def tree_mask(
    documents: torch.Tensor | None, continued: torch.Tensor | None
) -> torch.Tensor | None:
    """Return [rows, 1, row_tokens, row_tokens] bool, True where a place (third axis) attends to
    another: an earlier one, or itself, of its document or of the one that its document continues.

    ``documents``, ``continued``: as ``rlcore.models.packing.MicroBatch`` has them, int32 [rows,
    row_tokens]; None gives None, as the library then derives the mask from the positions.
    """
    if documents is None or continued is None:
        return None
    of_place, seen = documents[:, :, None], documents[:, None, :]
    attends = (seen == of_place) | (seen == continued[:, :, None])
    return attends.tril_()[:, None]
