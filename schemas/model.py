"""Recipe section ``model``: the base model that training starts from."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import StrictInt, model_validator

from schemas.section import Section, rule, setting


class FromScratch(Section):
    """A Qwen2 of random weights with a tokenizer trained on the recipe's own data."""

    hidden_size: int = setting(128, "width of the residual stream", ge=8)
    num_layers: int = setting(2, "transformer blocks", ge=1)
    num_heads: int = setting(4, "attention heads of a block", ge=1)
    num_kv_heads: int = setting(2, "key and value heads, shared by groups", ge=1)
    intermediate_size: int = setting(256, "width of the feed-forward layer", ge=8)
    tie_word_embeddings: bool = setting(True, "one matrix embeds and unembeds")
    vocab_size: int = setting(
        512, "upper bound of the trained vocabulary: 256 bytes, 5 special tokens, merges", ge=261
    )
    max_position_embeddings: int = setting(512, "longest context, tokens", ge=32)

    @property
    def parameters(self) -> int:
        """The number of parameters at the vocabulary's upper bound.

        ``V·H·(1 if tied else 2) + L·(2·H² + H + 2·(H·K + K) + 3·H·I + 2·H) + H``: embedding and
        head, then per layer q and o projections, q bias, k and v with bias, the three feed-forward
        matrices and two norms, then the final norm. V vocabulary, H hidden size, L layers, I
        feed-forward size, K width of the keys.
        """
        hidden, feed = self.hidden_size, self.intermediate_size
        keys = hidden // self.num_heads * self.num_kv_heads
        embeddings = self.vocab_size * hidden * (1 if self.tie_word_embeddings else 2)
        layer = 2 * hidden**2 + hidden + 2 * (hidden * keys + keys) + 3 * hidden * feed + 2 * hidden
        return embeddings + self.num_layers * layer + hidden

    @rule
    def _heads_divide(self) -> Iterator[str]:
        if self.hidden_size % self.num_heads:
            yield (
                f"hidden_size = {self.hidden_size} is not a multiple of num_heads ="
                f" {self.num_heads}; set num_heads to a divisor"
            )
        elif self.hidden_size // self.num_heads % 2:
            yield (
                f"num_heads = {self.num_heads} gives heads of {self.hidden_size // self.num_heads}"
                f" of hidden_size = {self.hidden_size}, and rotary embeddings rotate pairs; set"
                " num_heads so that hidden_size / num_heads is even"
            )
        if self.num_heads % self.num_kv_heads:
            yield (
                f"num_heads = {self.num_heads} is not a multiple of num_kv_heads ="
                f" {self.num_kv_heads}; set num_kv_heads to a divisor"
            )


class Adapter(Section):
    """Low-rank factors that are trained in place of the weights (LoRA, arXiv 2106.09685)."""

    kind: str = setting("lora", "W x + scale · B A x, W frozen", pattern="^lora$")
    rank: int = setting(32, "rows of A and columns of B", ge=1)
    alpha: float = setting(32.0, "scale = alpha / rank", gt=0)
    targets: Literal["all-linear"] | tuple[str, ...] = setting(
        "all-linear",
        "names of linear layers, such as [q_proj, v_proj]; all-linear = those of"
        " attention and MLP, not the output head",
    )
    base: Literal["full", "nf4"] = setting(
        "full",
        "the weights below it: in model.dtype, or 4-bit in blocks of 64 (QLoRA, arXiv"
        " 2305.14314; extra quant), of which engines get what the learner computes with",
    )
    rslora: bool = setting(False, "scale = alpha / sqrt(rank) instead (arXiv 2312.03732)")
    stages: tuple[Literal["sft", "preference", "reward_model", "rl"], ...] = setting(
        ("sft", "preference", "reward_model", "rl"),
        "those that train an adapter, each on what the one before it made; others train"
        " all weights. The learning rate of an adapter is about ten times that of all weights",
        min_length=1,
    )

    @property
    def scale(self) -> float:
        """What the product of the factors is multiplied by."""
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)

    @rule
    def _names_a_target(self) -> Iterator[str]:
        if not self.targets:
            yield "targets = [] trains nothing; name linear layers, or write all-linear"


class ModelSection(Section):
    """The base model: a directory, a hub name, or one made from scratch."""

    path: str | None = setting(None, "local directory or hub name (owner/name)")
    revision: str | None = setting(None, "hub commit to pin")
    from_scratch: FromScratch | None = None
    dtype: Literal["float32", "bfloat16"] = setting(
        "bfloat16", "of weights and passes; the optimizer's copy is float32"
    )
    adapter: Adapter | None = setting(
        None, "null = all weights are trained, {} = an adapter instead"
    )
    trust_remote_code: bool = setting(False, "run code shipped with the model")
    chat_template: str | None = setting(None, "Jinja; null = the model's own")
    stop_tokens: tuple[StrictInt | str, ...] = setting(
        (),
        "token texts or ids that end a turn, besides eos_token_id of the model's"
        " generation_config.json and config.json, the tokenizer's eos_token and the token with"
        " which the chat template closes an assistant turn",
    )
    max_tokens: int = setting(2048, "tokens: prompt and response together", ge=16)

    @model_validator(mode="before")
    @classmethod
    def _positions_of_context(cls, values: Any) -> Any:
        """Give a model from scratch positions for its context where they are not set."""
        if not isinstance(values, Mapping) or not isinstance(values.get("from_scratch"), Mapping):
            return values
        context = values.get("max_tokens", cls.model_fields["max_tokens"].default)
        if not isinstance(context, int):
            return values
        positions = max(context, FromScratch.model_fields["max_position_embeddings"].default)
        return {
            **values,
            "from_scratch": {"max_position_embeddings": positions, **values["from_scratch"]},
        }

    def adapter_of(self, stage: str) -> Adapter | None:
        """Return the adapter that ``stage`` trains, None where it trains all weights."""
        return self.adapter if self.adapter and stage in self.adapter.stages else None

    @rule
    def _one_origin(self) -> Iterator[str]:
        if (self.path is None) == (self.from_scratch is None):
            state = "neither is" if self.path is None else "both are"
            yield (f"{state} set of path and from_scratch; set exactly one of them")
