"""One config per algorithm: the usual names of its settings, each a field of the recipe.

``rlcore.api.recipe`` makes a recipe of a config; what a config leaves out comes from the preset
of its algorithm (``schemas/presets.py``). A wrong name or value is a UserError of one sentence.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from schemas.errors import UserError, did_you_mean
from schemas.sampling import Temperature
from schemas.section import Section, setting

Exhausted = Literal["error", "train_partial", "pad_unfiltered"]


class ApiConfig(Section):
    """Settings of a call; a wrong name or value is a ``UserError``."""

    seed: int = Field(default=0, ge=0)
    dtype: Literal["float32", "bfloat16"] | None = setting(
        None, "None: bfloat16 on a GPU, else float32"
    )
    threads: int | None = setting(None, "None: as torch is set", ge=1)
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="dotted recipe keys, for everything else"
    )

    if not TYPE_CHECKING:  # editors keep the signature that pydantic makes from the fields

        def __init__(self, **values: Any) -> None:
            """Raise UserError, in one sentence, for an unknown name or a bad value."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise UserError(_sentence(type(self), error)) from None


class TrainingConfig(ApiConfig):
    """What every algorithm of RL takes. Lengths are in tokens; None = as the description says."""

    preset: ClassVar[str]
    min_group: ClassVar[int] = 2
    length_field: ClassVar[str] = "max_completion_length"

    model_name: str | None = setting(None, "directory or hub name")
    output_dir: str | None = setting(None, "None: nothing is kept on disk")
    num_episodes: int | None = setting(
        None, "iterations that train the policy; None: one pass", ge=1
    )
    num_prompts_per_batch: int | None = setting(
        None, "prompts per iteration; None: the preset's, or all", ge=1
    )
    num_gradient_updates: int | None = setting(
        None, "optimizer steps per iteration; None: the preset's, or less", ge=1
    )
    ppo_epochs: int = setting(1, "passes over an iteration's responses", ge=1)
    group_size: int = setting(8, "responses per prompt", ge=1)
    temperature: Temperature = 1.0
    max_prompt_length: int | None = setting(
        None, "longer prompts are refused; None: as the prompts are", ge=1
    )
    max_completion_length: int | None = setting(
        512, "of a response; cut to the model's context unless set", ge=1
    )
    correct_threshold: float = setting(
        0.5, "without verifier_fn, a reward above it counts as correct"
    )
    reward_timeout_s: float = setting(60.0, "of one awaited reward", gt=0)
    max_error_fraction: float = setting(
        0.05, "share of rows that fail, above which the run stops", ge=0, le=1
    )
    max_timeout_fraction: float = setting(
        0.2, "share of rows that time out, above which the run stops", ge=0, le=1
    )
    gradient_checkpointing: bool = False
    checkpoint_every: int = setting(1, "iterations between checkpoints below output_dir", ge=1)
    show_progress: bool = setting(True, "a bar with reward and tokens/s on standard error")

    def lengths(self, room: int | None) -> tuple[int, dict[str, int]]:
        """Return the longest response, and ``rl.algorithm.overlong`` ({} where off), in tokens.

        ``room``: tokens that the model's context leaves after the longest prompt; None: no bound.
        """
        return self._fitting(room), {}

    def _fitting(self, room: int | None) -> int:
        """Return the response length: a default is reduced to ``room``; a length that was set and
        exceeds it raises UserError."""
        limit: int | None = self.model_dump()[self.length_field] or room
        if limit is None:
            raise UserError(
                f"{type(self).__name__}.{self.length_field} = None and the model names no context;"
                " give a number of tokens"
            )
        if room is None or limit <= room:
            return limit
        if self.length_field in self.model_fields_set:
            raise UserError(
                f"{type(self).__name__}.{self.length_field} = {limit} and the model's context"
                f" leaves {room} tokens after the longest prompt; lower it to {room}"
            )
        return room

    @model_validator(mode="after")
    def _group_can_be_compared(self) -> Self:
        if self.group_size < self.min_group:
            raise ValueError(
                f"group_size = {self.group_size} leaves a response nothing to be compared with;"
                f" set it to at least {self.min_group}"
            )
        return self


class _Clipped(TrainingConfig):
    """Policy without critic, symmetric clip."""

    clip_eps: float = setting(0.2, "ratio stays in 1 ± clip_eps", gt=0, lt=1)
    learning_rate: float = Field(default=1e-6, gt=0)
    warmup_ratio: float = setting(0.0, "linear warm-up, share of all optimizer steps", ge=0, lt=1)


class GRPOConfig(_Clipped):
    """Group-relative advantages (arXiv 2402.03300)."""

    preset = "grpo"
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1)
    beta: float = setting(0.01, "coefficient of the KL in the loss; 0: off", ge=0)


class RLOOConfig(_Clipped):
    """REINFORCE with a leave-one-out baseline (arXiv 2402.14740)."""

    preset = "rloo"


class ReMaxConfig(_Clipped):
    """The reward of the prompt's greedy answer as baseline (arXiv 2310.10505)."""

    preset = "remax"
    min_group = 1
    group_size: int = Field(default=1, ge=1)


class GEPOConfig(_Clipped):
    """Group-level importance weights (arXiv 2508.17850)."""

    preset = "gepo"
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1)


class _ClipHigher(TrainingConfig):
    """The ratio stays in [1 - clip_eps_low, 1 + clip_eps_high]."""

    clip_eps_low: float = Field(default=0.2, gt=0, lt=1)
    clip_eps_high: float = Field(default=0.28, gt=0)


class GSPOConfig(_ClipHigher):
    """Importance ratio of sequences (arXiv 2507.18071): its clip range is 1,000 times smaller."""

    preset = "gspo"
    clip_eps_low: float = Field(default=3e-4, gt=0, lt=1)
    clip_eps_high: float = Field(default=4e-4, gt=0)
    learning_rate: float = Field(default=1e-6, gt=0)
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)


class DAPOConfig(_ClipHigher):
    """Clip-higher, dynamic sampling, token-level loss, overlong shaping (arXiv 2503.14476).

    ``max_generation_length`` is L_max, at which the penalty reaches -1; responses may be as long
    unless ``max_completion_length`` says otherwise. Lengths left at their defaults keep their
    proportion where the model's context or ``max_completion_length`` is shorter.
    """

    preset = "dapo"
    length_field = "max_generation_length"
    group_size: int = Field(default=16, ge=1)
    learning_rate: float = Field(default=1e-6, gt=0)
    warmup_ratio: float | None = setting(None, "None: 20 iterations, as in the paper", ge=0, lt=1)
    use_dynamic_sampling: bool = setting(
        True, "train on prompts answered neither all right nor all wrong"
    )
    on_exhausted: Exhausted = setting(
        "pad_unfiltered",
        "when too few prompts qualify: stop, train on those, or fill up with others",
    )
    use_overlong_shaping: bool = True
    max_generation_length: int = Field(default=20480, ge=1)
    overlong_cache_length: int = setting(4096, "soft interval below it", ge=0)
    max_completion_length: int | None = Field(default=None, ge=1)

    def lengths(self, room: int | None) -> tuple[int, dict[str, int]]:
        longest = self.max_completion_length or self._fitting(room)
        if room is not None and longest > room:
            raise UserError(
                f"DAPOConfig.max_completion_length = {longest} and the model's context leaves"
                f" {room} tokens after the longest prompt; lower it to {room}"
            )
        if not self.use_overlong_shaping:
            return longest, {}
        limit, cache = self.max_generation_length, self.overlong_cache_length
        if "max_generation_length" not in self.model_fields_set:
            limit = min(limit, longest)
        if "overlong_cache_length" not in self.model_fields_set:
            cache = min(cache, limit // 5)
        return longest, {"max_tokens": limit, "cache_tokens": cache}

    @model_validator(mode="after")
    def _shaping_can_act(self) -> Self:
        if not self.use_overlong_shaping:
            return self
        longest, overlong = self.lengths(None)
        limit, cache = overlong["max_tokens"], overlong["cache_tokens"]
        if cache > limit:
            raise ValueError(
                f"overlong_cache_length = {cache} exceeds max_generation_length = {limit}; lower it"
            )
        if limit - cache >= longest:
            raise ValueError(
                f"max_generation_length - overlong_cache_length = {limit - cache} and responses end"
                f" at {longest} tokens, so overlong shaping could never act; lower"
                " max_generation_length, raise max_completion_length, or set use_overlong_shaping"
                " to False"
            )
        return self


class _WithCritic(TrainingConfig):
    """Policy and value model, each with its own optimizer."""

    min_group = 1

    actor_learning_rate: float = Field(default=1e-6, gt=0)
    critic_learning_rate: float = Field(default=1e-5, gt=0)
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    value_warmup_steps: int = setting(
        0, "iterations that train the critic alone, before num_episodes", ge=0
    )


class PPOConfig(_WithCritic):
    """PPO with GAE and the KL in the reward (arXiv 1707.06347; numbers: verl's one-GPU example)."""

    preset = "ppo"
    group_size: int = Field(default=1, ge=1)
    clip_eps: float = Field(default=0.2, gt=0, lt=1)
    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    beta: float = setting(1e-3, "coefficient of the KL in the reward", ge=0)


class VAPOConfig(_WithCritic, _ClipHigher):
    """Value warm-up, decoupled and length-adaptive GAE, positive-example loss (2504.05118)."""

    preset = "vapo"
    group_size: int = Field(default=16, ge=1)
    critic_learning_rate: float = Field(default=2e-6, gt=0)
    value_warmup_steps: int = setting(
        50, "iterations that train the critic alone, before num_episodes", ge=0
    )
    lambda_critic: float = setting(1.0, "of the critic's target", ge=0, le=1)
    lambda_policy_alpha: float = setting(
        0.05, "lambda of the policy = 1 - 1/(alpha x tokens)", gt=0
    )
    use_positive_lm_loss: bool = True
    positive_lm_weight: float = Field(default=0.1, ge=0)


def _sentence(config: type[ApiConfig], error: ValidationError) -> str:
    """Return the first error as a sentence: class, field, value, rule, nearest name."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = ".".join([config.__name__, *(str(part) for part in first["loc"])])
    if first["type"] == "extra_forbidden":
        fields = sorted(config.model_fields)
        near = did_you_mean(str(first["loc"][-1]), fields)
        return f"{path} is not a setting{near}; there are {', '.join(fields)}"
    rule = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{path}: {rule}"
    return f"{path} = {first['input']!r} is refused: {rule[0].lower()}{rule[1:]}"
