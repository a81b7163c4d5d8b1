"""The model with a scalar head, one number per token: a critic or a reward model."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rlcore.models.logprobs import decoded, tree_mask
from schemas.errors import UserError

SCORE = "score"  # the head's name in every <X>ForSequenceClassification decoder
SCORE_BIAS = f"{SCORE}.bias"  # our addition: transformers' head has no bias


class ScoreHead(nn.Linear):
    """hidden [..., hidden] -> score [...] in fp32, whatever the weights' dtype."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 1)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return weight . input + bias."""
        return nn.functional.linear(input.float(), self.weight.float(), self.bias.float())[..., 0]


class TokenValueModel(nn.Module):
    """A ``<X>ForSequenceClassification`` whose score, with a bias, is read at chosen tokens."""

    def __init__(self, lm: PreTrainedModel) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, *inputs: Any, **named: Any) -> tuple[torch.Tensor]:
        """Return (values [targets] fp32,); arguments as ``hidden``'s."""
        return (self.lm.get_submodule(SCORE)(self.hidden(*inputs, **named)),)

    def hidden(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        predictors: torch.Tensor,
        documents: torch.Tensor | None = None,
        continued: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the input of the head at the flat places ``predictors`` [targets]: [targets,
        hidden].

        ``input_ids``, ``position_ids`` [rows, row_tokens], packed; ``documents``,
        ``continued``: as ``rlcore.models.packing.MicroBatch`` has them.
        """
        return decoded(
            self.lm.base_model,
            predictors,
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=tree_mask(documents, continued),
        )


def put_score_head(lm: PreTrainedModel, bias: torch.Tensor | None, *, fresh: bool) -> None:
    """Give ``lm`` our head: its own score with ``bias`` [1] (None: 0), or zeros when ``fresh``.

    Raises ``UserError`` for an architecture whose head is not one linear layer to one label.
    """
    heads = dict(lm.named_children())
    plain = heads.get(SCORE)
    if not isinstance(plain, nn.Linear) or plain.out_features != 1:
        raise UserError(
            f"architecture {type(lm).__name__} has no linear '{SCORE}' head with one label; use a "
            "Llama- or Qwen-like model"
        )
    head = ScoreHead(plain.in_features).to(plain.weight)
    with torch.no_grad():
        head.weight.zero_() if fresh else head.weight.copy_(plain.weight)
        head.bias.zero_() if bias is None else head.bias.copy_(bias)
    lm.add_module(SCORE, head)
