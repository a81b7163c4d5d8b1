"""Recipe sections ``reward`` and ``rl``: what is rewarded, and how the policy learns from it.

An algorithm is a choice along a few axes; a preset names a set of choices (SPEC section 5). A
recipe may override any axis of its preset.
"""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from schemas.errors import did_you_mean
from schemas.section import Section

PRESETS: dict[str, dict[str, Any]] = {
    # GRPO paper arXiv 2402.03300 eq. 3 (sequence mean of token means); clip .2 and k3 .01: SPEC 5.
    "grpo": {
        "advantage": "grpo",
        "norm_by_std": True,
        "ratio_level": "token",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "clip_dual": 3.0,
        "aggregation": "seq-mean-token-mean",
        "kl": {"where": "loss", "estimator": "k3", "coef": 0.01},
    },
}


class Schedule(Section):
    """Learning-rate schedule; ticks once per optimizer step."""

    kind: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    warmup_steps: int = Field(default=0, ge=0, description="optimizer steps from lr/warmup to lr")
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1, description="final lr as a share of lr")
    decay_fraction: float = Field(
        default=0.1, gt=0, le=1, description="wsd: share of steps spent in the final decay"
    )


class Optimizer(Section):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-6, gt=0, description="peak learning rate")
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    grad_clip: float = Field(default=1.0, gt=0, description="global gradient norm limit")
    schedule: Schedule = Schedule()


class RewardFunction(Section):
    """One term of the reward."""

    name: str = Field(description="registered name, or 'package.module:function'")
    weight: float = 1.0
    options: dict[str, Any] = Field(default_factory=dict)


class RewardSection(Section):
    """Weighted sum of reward functions, scored in worker processes (SPEC R1-R3, R6)."""

    functions: tuple[RewardFunction, ...] = Field(min_length=1)
    timeout_s: float = Field(default=10.0, gt=0, description="wall clock per row")
    memory_gib: float | None = Field(default=None, gt=0, description="limit of a scoring process")
    max_error_fraction: float = Field(
        default=0.05, ge=0, le=1, description="share of timeouts and errors that stops the run"
    )


class KL(Section):
    """KL to the frozen reference (SPEC K1-K5)."""

    where: Literal["none", "loss"] = "none"
    estimator: Literal["k1", "abs", "k2", "k3", "k1+", "k3+"] = "k3"
    coef: float = Field(default=0.01, ge=0)

    @property
    def uses_reference(self) -> bool:
        """Whether a frozen reference is needed at all (SPEC K6)."""
        return self.where != "none" and self.coef > 0


class ImportanceCorrection(Section):
    """Truncated importance weights between learner and sampler (SPEC E3)."""

    level: Literal["none", "token", "sequence"] = "none"
    cap: float = Field(default=2.0, gt=0, description="weights are min(exp(old - sampler), cap)")


class Algorithm(Section):
    """The axes of a policy-gradient algorithm; ``preset`` fills those a recipe leaves out."""

    preset: str = "grpo"
    advantage: Literal["grpo"] = "grpo"
    norm_by_std: bool = Field(default=True, description="false = Dr.GRPO (arXiv 2503.20783)")
    ratio_level: Literal["token"] = "token"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.2, gt=0)
    clip_dual: float | None = Field(default=3.0, gt=1, description="dual clip c; null = off")
    aggregation: Literal[
        "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = "seq-mean-token-mean"
    kl: KL = KL()
    entropy_coef: float = Field(default=0.0, ge=0)
    importance_correction: ImportanceCorrection = ImportanceCorrection()

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        name = values.get("preset", "grpo")
        if name not in PRESETS:
            near = did_you_mean(str(name), PRESETS)
            raise ValueError(f"preset {name!r} is not one of {', '.join(PRESETS)}{near}")
        filled = {**PRESETS[name], **values}
        if isinstance(values.get("kl"), dict):
            filled["kl"] = {**PRESETS[name].get("kl", {}), **values["kl"]}
        return filled


class RolloutSection(Section):
    """What is sampled per iteration."""

    prompts: int = Field(default=64, ge=1, description="prompts per iteration")
    samples: int = Field(default=8, ge=1, description="responses per prompt: the group size G")
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1, description="-1 = off")
    max_new_tokens: int = Field(default=512, ge=1)

    @model_validator(mode="after")
    def _samples_whole_distribution(self) -> "RolloutSection":
        if self.top_p < 1 or self.top_k > 0:
            raise ValueError(
                "top_p < 1 or top_k > 0 cuts the distribution the learner's log-probs assume"
                " (SPEC E2); set top_p to 1 and top_k to -1"
            )
        return self


class UpdateSection(Section):
    """How one batch of rollouts becomes optimizer steps."""

    mini_batches: int = Field(default=2, ge=1, description="optimizer steps per epoch")
    epochs: int = Field(default=1, ge=1, description="passes over the rollouts")
    shuffle: bool = Field(default=False, description="permute prompts before cutting mini-batches")
    skip_zero_advantage: bool = Field(
        default=True, description="leave rows of advantage 0 out of the forward pass"
    )
    optimizer: Optimizer = Optimizer()


class ValidationSection(Section):
    """Greedy validation during RL; the only split that may choose a checkpoint."""

    every: int = Field(default=10, ge=1, description="iterations between validations")
    prompts: int = Field(default=256, ge=1, description="validation prompts used")
    stop_at: float | None = Field(
        default=None, gt=0, le=1, description="end RL once this accuracy holds `patience` times"
    )
    patience: int = Field(default=2, ge=1)


class CheckpointSection(Section):
    """Which RL checkpoints stay on disk."""

    every: int = Field(default=1, ge=1, description="iterations between checkpoints")
    keep_last: int = Field(default=2, ge=1)
    keep_best: int = Field(default=1, ge=1, description="best by validation accuracy")


class RLSection(Section):
    """The RL stage: iterations of rollout, reward, advantage, update, sync."""

    iterations: int = Field(default=100, ge=1)
    algorithm: Algorithm = Algorithm()
    rollout: RolloutSection = RolloutSection()
    update: UpdateSection = UpdateSection()
    validation: ValidationSection = ValidationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    max_logprob_gap: float = Field(
        default=1e-3,
        gt=0,
        description="|learner - sampler| log-prob (nats) from which the run stops;"
        " in fp32 they agree to about 1e-4",
    )

    @field_validator("max_logprob_gap")
    @classmethod
    def _gap_is_usable(cls, value: float) -> float:
        if value > 10:
            raise ValueError("a bound above 10 nats can never fire; use at most 10")
        return value

    @model_validator(mode="after")
    def _batches_divide(self) -> "RLSection":
        prompts, mini = self.rollout.prompts, self.update.mini_batches
        if prompts % mini:
            raise ValueError(
                f"rollout.prompts = {prompts} is not a multiple of update.mini_batches = {mini};"
                f" set update.mini_batches to a divisor of {prompts}"
            )
        if self.rollout.samples < 2:
            raise ValueError(
                f"algorithm.advantage = {self.algorithm.advantage!r} compares samples within a"
                " group; set rollout.samples to at least 2"
            )
        return self
