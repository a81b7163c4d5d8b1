"""How many floating-point operations a training pass needs, from the model's shape."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """``parameters``: that each token is multiplied by. ``attention_width``: layers x heads x size
    of a head, 0 where the configuration does not say."""

    parameters: int
    attention_width: int

    def flops(self, tokens: int, squared_lengths: int) -> float:
        """Return the FLOPs of forward and backward over sequences of ``tokens`` tokens together,
        whose squared lengths add up to ``squared_lengths``.

        ``6·N·tokens + 6·W·sum(length²)``: a multiply-add forward and two backward per parameter
        (PaLM, arXiv 2204.02311, appendix B), and half of the attention matrix, which is causal.
        Recomputed and padded work is none of it.
        """
        return 6.0 * self.parameters * tokens + 6.0 * self.attention_width * squared_lengths


def training_cost(model: "PreTrainedModel") -> TrainingCost:
    """Return what a token costs ``model``, whose weights are whole (before ZeRO-3 splits them).

    Matrices count, vectors do not; an embedding counts where it is the output head too. Of a layer
    of experts, which is one tensor of three dimensions, those that a token is sent to count.
    """
    config = model.config.get_text_config()
    chosen: int | None = getattr(config, "num_experts_per_tok", None)
    embedding = model.get_input_embeddings().weight
    parameters = 0.0
    for weight in model.parameters():
        if weight.dim() < 2 or (weight is embedding and not _is_head(model, weight)):
            continue
        used = chosen / weight.shape[0] if chosen is not None and weight.dim() == 3 else 1.0
        parameters += weight.numel() * used
    layers = getattr(config, "num_hidden_layers", 0)
    heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    return TrainingCost(int(parameters), layers * heads * size)


def _is_head(model: "PreTrainedModel", embedding: object) -> bool:
    head = model.get_output_embeddings()
    return head is not None and getattr(head, "weight", None) is embedding
