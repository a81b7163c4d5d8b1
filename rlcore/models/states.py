"""Models whose layers keep states besides keys and values: hybrids."""

from schemas.errors import UserError


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
