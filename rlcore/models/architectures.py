"""What some architectures do beside plain attention: states besides keys and values (hybrids),
and changes of logits behind the output head and of attention's scores.

Logits are scaled (Granite, Cohere, Falcon-H1) or soft-capped, ``cap * tanh(logits / cap)`` (Gemma
2, arXiv 2408.00118 sec. 2); so are the scores of Gemma 2's attention, which sdpa leaves out.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from schemas.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SDPA, EAGER = "sdpa", "eager"
MULTIPLIERS = ("logit_scale", "lm_head_multiplier")  # Cohere; Falcon-H1
DIVISORS = ("logits_scaling",)  # Granite
CAPS = ("final_logit_softcapping", "logits_soft_cap")  # Gemma 2 and 3; RecurrentGemma


@dataclass(frozen=True, slots=True)
class FinalLogits:
    """Logits of a product of head and hidden state: times ``scale``, then capped."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the model's logits, float32 where they differ from ``logits``."""
        if self.scale != 1.0:
            logits = logits.float() * self.scale
        if self.cap is not None:
            logits = torch.tanh(logits.float() / self.cap) * self.cap
        return logits

    def slope(self, logits: torch.Tensor) -> torch.Tensor | float:
        """Return the derivative of the model's ``logits`` by those of the product."""
        if self.cap is None:
            return self.scale
        return (1.0 - (logits / self.cap).square()) * self.scale


def final_logits(config: Any) -> FinalLogits:
    """Return what an architecture does, as its config.json says."""
    text, scale = config.get_text_config(), 1.0
    for name in MULTIPLIERS:
        scale *= _number(text, name) or 1.0
    for name in DIVISORS:
        scale /= _number(text, name) or 1.0
    caps = [cap for name in CAPS if (cap := _number(text, name)) is not None]
    return FinalLogits(scale, caps[0] if caps else None)


def caps_attention(config: Any) -> bool:
    """Return whether a model soft-caps the scores of its attention."""
    return bool(_number(config.get_text_config(), "attn_logit_softcapping"))


def plain_attention(config: Any) -> str:
    """Return transformers' name of the attention that computes a model of ``config`` anywhere: sdpa
    but where that would leave out a cap."""
    return EAGER if caps_attention(config) else SDPA


def _number(config: Any, name: str) -> float | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int | float) and value else None


def takes_masks(model: "PreTrainedModel") -> bool:
    """Return whether every layer of ``model`` attends to all earlier tokens, by transformers' own
    attention and masks; ``model`` then takes a mask of each row's columns as it is."""
    from transformers import DynamicCache, DynamicLayer

    if caps_attention(model.config):
        return False
    layers = DynamicCache(config=model.config).layers
    plain = all(type(layer) is DynamicLayer for layer in layers)
    return plain and bool(layers) and bool(getattr(model, "_supports_attention_backend", False))


def keeps_states(model_dir: str) -> bool:
    """Return whether the model of ``model_dir`` keeps more of a row than keys and values, as
    hybrids do with the state of a recurrence or a convolution."""
    from transformers import AutoConfig, DynamicCache
    from transformers.cache_utils import LinearAttentionCacheLayerMixin

    config = AutoConfig.from_pretrained(model_dir)
    layers = DynamicCache(config=config.get_text_config()).layers
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


def check_states(model_dir: str) -> None:
    """Raise ``UserError`` for such a model where rows are decoded from keys and values alone."""
    if keeps_states(model_dir):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(model_dir)
        name = (config.architectures or [config.model_type])[0]
        raise UserError(
            f"model.path = '{model_dir}' is a {name}, whose layers keep states besides keys and"
            " values, which the transformers engine cannot continue; set hardware.rollout.engine"
            " to vllm, or use another model"
        )
