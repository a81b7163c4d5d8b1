"""Whether a decoder computes what its model does, tried before it samples anything."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import log2, sqrt
from random import Random

import torch
from transformers import PreTrainedModel

from rlcore.engines.gpu.packed_model import PackedModel
from rlcore.engines.row_decoder import GROUPED, RowDecoder, may_share_prompts
from rlcore.engines.types import NOISE
from schemas.errors import UserError

PROMPTS, MORE = (5, 5, 2), 3  # tokens: two rows share a prompt and one has padding
LONGEST = max(PROMPTS) + MORE
FURTHEST = {torch.float32: 1e-3, torch.bfloat16: 0.04}  # of a logit, over the greatest logit


@torch.no_grad()
def is_right(
    model: PreTrainedModel, *, shared: bool = False, packed: PackedModel | None = None
) -> bool:
    """Return whether ``RowDecoder`` with these arguments gives the logits of ``model``, within its
    dtype's rounding. The model holds noise in (-``NOISE``, ``NOISE``), and the same bits after
    it."""
    draw, vocabulary = Random(0), range(model.config.get_text_config().vocab_size)
    common, alone = (draw.choices(vocabulary, k=length) for length in PROMPTS[1:])
    rows = [common, list(common), alone]
    with _moderate(model):
        decoder = RowDecoder(model, rows, MORE, shared=shared, packed=packed)
        worst = 0.0
        for _ in range(MORE):
            more = draw.choices(vocabulary, k=len(rows))
            decoder.step(torch.tensor(more, device=model.device)[decoder.order])
            rows = [[*row, token] for row, token in zip(rows, more, strict=True)]
            for place, row in enumerate(decoder.order.tolist()):
                ids = torch.tensor([rows[row]], device=model.device)
                expected = model(input_ids=ids, use_cache=False).logits[0, -1].float()
                gap = (decoder.logits[place].float() - expected).abs().max() / expected.abs().max()
                worst = max(worst, float(gap.nan_to_num(torch.inf)))
    return worst <= FURTHEST[model.dtype]


def shares_prompts(model: PreTrainedModel) -> bool:
    """Return whether rows of ``model`` are decoded with the keys of equal prompts kept once, and
    let it attend by ``GROUPED`` where they are.

    Raises ``UserError`` where rows cannot be decoded from keys and values at all.
    """
    if may_share_prompts(model):
        plain = model.config._attn_implementation or "sdpa"
        model.set_attn_implementation(GROUPED)
        # A class may know no further arguments, have no numbers of its layers, or have heads of
        # several numbers: each row then has its prompt's keys, by the class's own attention.
        with suppress(AttributeError, LookupError, RuntimeError, TypeError):
            if is_right(model, shared=True):
                return True
        model.set_attn_implementation(plain)
    if not is_right(model):
        raise UserError(
            f"hardware.rollout.engine = 'transformers' does not decode {type(model).__name__} with"
            " the logits of a forward pass over the whole sequence; set it to vllm, or use another"
            " model"
        )
    return False


@contextmanager
def _moderate(model: PreTrainedModel) -> Iterator[None]:
    """Scale matrices of noise so that layers keep the size of what they are given, as trained ones
    do: a softmax of far greater scores would enlarge roundings. Powers of 2 lose no bit."""
    scaled = []
    for parameter in model.parameters():
        if parameter.dim() > 1:
            deviation = NOISE / sqrt(3)
            factor = 2.0 ** round(log2(1 / (deviation * sqrt(parameter.shape[-1]))))
            parameter.mul_(factor)
            scaled.append((parameter, factor))
    try:
        yield
    finally:
        for parameter, factor in scaled:
            parameter.div_(factor)
