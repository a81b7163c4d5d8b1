"""Recipe section ``rl.algorithm``: the dimensions in which policy-gradient algorithms differ.

Advantage estimator x importance ratio x policy loss x aggregation x KL x group filter x reward
shaping x auxiliary losses. PPO, GRPO, DAPO, ... are combinations of choices
(``schemas/presets.py``).
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    Field,
    SerializationInfo,
    field_serializer,
    model_validator,
)

from schemas.names import portable_name
from schemas.section import Section, known_or_own, rule, setting


def _finite(value: Any) -> Any:
    """Refuse numbers, at any depth, that no JSON and so no cache key can hold."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        _finite(each)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it holds {value}, and numbers must be finite; replace it")
    return value


Options = Annotated[dict[str, Any], AfterValidator(_finite)]


class Traits(NamedTuple):
    """The inputs of an advantage estimator other than scores."""

    critic: bool = False
    group: bool = False
    greedy: bool = False
    gamma: bool = False


ADVANTAGES: dict[str, Traits] = {
    "gae": Traits(critic=True, gamma=True),
    "grpo": Traits(group=True),
    "rloo": Traits(group=True),
    "remax": Traits(greedy=True),
    "reinforce++": Traits(gamma=True),
    "reinforce++-baseline": Traits(group=True),
}
POLICY_LOSSES = ("clip", "cispo", "reinforce")
SEQUENCE_RATIOS = ("sequence", "sequence-token", "group")


class GAE(Section):
    """Generalised advantage estimation (arXiv 1506.02438), decoupled as in VAPO (2504.05118)."""

    gamma: float = setting(1.0, "discount per policy token", gt=0, le=1)
    lam: float = setting(1.0, "lambda of the policy's advantages", ge=0, le=1)
    lam_critic: float | None = setting(
        None, "lambda of the critic's target; null = lam", ge=0, le=1
    )
    length_adaptive_alpha: float | None = setting(
        None, "lambda = 1 - 1/(alpha |y|) per sequence, instead of lam", gt=0
    )
    whiten: bool = setting(True, "advantages to mean 0, variance 1 of the batch")


class KL(Section):
    """KL to the frozen reference (docs/understand/algorithms.md, "KL")."""

    where: Literal["none", "loss", "reward", "monitor"] = setting(
        "none", "term of the loss, taken from each token's reward, measured only, or no KL"
    )
    estimator: Literal["k1", "abs", "k2", "k3", "k1+", "k3+", "full"] = setting(
        "k3", "per token; as a loss k1 has no gradient in expectation: use k2"
    )
    coef: float = setting(0.01, "weight in loss or reward, per nat; 0 = off", ge=0)
    controller: Literal["fixed", "adaptive"] = setting(
        "fixed", "adaptive: Ziegler et al. 2019, for KL in the reward"
    )
    target: float = setting(0.1, "adaptive: target KL per token, nats", gt=0)
    horizon: int = setting(10_000, "adaptive: sequences; more = slower", ge=1)
    every: int = setting(1, "monitor: iterations between measurements, from the first on", ge=1)

    def is_due(self, iteration: int) -> bool:
        """Return whether ``iteration``, from 1, needs the reference."""
        return self.uses_reference and (iteration - 1) % self.every == 0

    @property
    def uses_reference(self) -> bool:
        """Whether a frozen reference is needed."""
        return self.where == "monitor" or (self.where != "none" and self.coef > 0)

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_place(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("where") == "reward":
            return {"estimator": "k1", "coef": 0.001, **values}
        return values

    @rule
    def _acts_somewhere(self) -> Iterator[str]:
        if self.controller == "adaptive" and self.where != "reward":
            yield (
                f"controller = 'adaptive' steers the KL taken from the reward and where ="
                f" {self.where!r}; set where to 'reward' or controller to 'fixed'"
            )
        if self.controller == "adaptive" and self.coef == 0:
            yield (
                "controller = 'adaptive' scales coef = 0, which stays 0; give coef a start"
                " such as 0.001"
            )
        if self.every > 1 and self.where != "monitor":
            yield (
                f"every = {self.every} is of a KL that is only measured and where = {self.where!r};"
                " set where to 'monitor' or every to 1"
            )
        if self.where == "reward" and self.estimator.endswith("+"):
            yield (
                f"estimator = {self.estimator!r} differs from {self.estimator[:-1]!r} in its"
                f" gradient only, and a reward has none; set estimator to {self.estimator[:-1]!r}"
            )


class Rejection(Section):
    """Responses whose tokens give no policy loss, because the sampler is too far from ``old``. They
    stay in group statistics and in the loss's denominators."""

    statistic: Literal["geometric", "k3", "veto"] = Field(
        description="of a response, with l = log(old / sampler) of a token: geometric = exp(mean of"
        " l); k3 = mean of exp(l) - 1 - l, nats; veto = exp(l), of which each must be in the bounds"
    )
    low: float | None = setting(None, "smallest old / sampler kept; null = no bound", gt=0, lt=1)
    high: float | None = setting(
        None, "largest old / sampler (k3: nats) kept; null = no bound", gt=0
    )

    @rule
    def _bounds_something(self) -> Iterator[str]:
        if self.statistic == "k3" and (self.high is None or self.low is not None):
            yield (
                f"statistic = 'k3' is 0 where sampler and learner agree, so it has one bound, and"
                f" low = {self.low}, high = {self.high}; set high, such as 0.01, and leave low out"
            )
        if self.statistic != "k3" and self.low is None and self.high is None:
            yield (
                f"statistic = {self.statistic!r} without low and high keeps every response; set one"
            )
        if self.statistic != "k3" and self.high is not None and self.high <= 1:
            yield (
                f"high = {self.high:g} would reject a response on which sampler and learner agree,"
                " whose old / sampler is 1; set it above 1"
            )


class ImportanceCorrection(Section):
    """Importance weights and masks between learner and sampler, of the policy loss alone.

    ``old``: the denominator of the ratio (``rl.update.old_logprobs``), so that ratio x weight is
    the current policy over the sampler. Bounds are inclusive, in units of old / sampler.
    """

    level: Literal["none", "token", "sequence"] = setting(
        "none", "a weight per token, one per response, or none at all"
    )
    mode: Literal["truncate", "mask"] = setting(
        "truncate",
        "what becomes of a weight outside low and cap: the nearer bound (TIS), or 0 (IcePop, MIS)",
    )
    low: float | None = setting(
        None, "smallest weight, exp(old - sampler); null = no bound", gt=0, lt=1
    )
    cap: float = setting(2.0, "largest weight, exp(old - sampler)", gt=0)
    reject: tuple[Rejection, ...] = setting(
        (), "responses that are masked whole, whatever the weights"
    )

    @property
    def is_on(self) -> bool:
        """Whether anything is weighed or masked."""
        return self.level != "none" or bool(self.reject)

    @rule
    def _bounds_weights(self) -> Iterator[str]:
        if self.level == "none" and (self.mode == "mask" or self.low is not None):
            yield (
                f"level = 'none' has no weights and mode = {self.mode!r}, low = {self.low} bound"
                " them; set level to 'token' or 'sequence', or leave mode and low out"
            )
        if self.mode == "mask" and self.cap <= 1:
            yield (
                f"mode = 'mask' and cap = {self.cap:g} would mask the tokens on which sampler and"
                " learner agree, whose weight is 1; set cap above 1"
            )
        if self.low is not None and self.low >= self.cap:
            yield f"low = {self.low:g} is not below cap = {self.cap:g}; lower it"
        statistics = [rejection.statistic for rejection in self.reject]
        for name in dict.fromkeys(statistics):
            if statistics.count(name) > 1:
                yield f"reject names statistic = {name!r} more than once; give it one low and high"


class PositiveNLL(Section):
    """Language-model loss on the tokens of correct samples (VAPO, arXiv 2504.05118 section 4.3)."""

    coef: float = setting(0.0, "weight of this loss, mu; 0 = off", ge=0)
    threshold: float | None = setting(
        None, "score above which a sample is correct; null = by the reward functions"
    )


class Overlong(Section):
    """Soft overlong penalty, added to the task reward (DAPO, arXiv 2503.14476 eq. 13)."""

    max_tokens: int | None = setting(None, "L_max, tokens; null = rl.rollout.max_new_tokens", ge=1)
    cache_tokens: int | None = setting(
        None, "C, tokens below L_max where it grows; null = L_max / 5", ge=0
    )
    factor: float = setting(1.0, "largest penalty, in units of score", gt=0)


class DynamicSampling(Section):
    """Keep only prompts whose samples differ, and draw new ones until the batch is full (DAPO)."""

    metric: Literal["accuracy", "score", "final_score"] = setting(
        "accuracy",
        "what must differ within a group: correctness, the score before shaping, or"
        " the score after overlong shaping and KL",
    )
    tolerance: float = setting(1e-9, "scores this close count as equal", ge=0)
    batch_factor: int = setting(
        3, "prompts drawn per round, in multiples of rl.rollout.prompts", ge=1
    )
    max_rounds: int = setting(10, "generation rounds; 0 or less = unlimited")
    on_exhausted: Literal["error", "train_partial", "pad_unfiltered"] = setting(
        "error", "what to do when max_rounds did not fill the batch"
    )


IN_KEYS = {"in": "keys"}  # the context in which a section is serialised for a stage's key
_OR_YOURS = ", 'package.module:function', or 'path/to/file.py:function' from the recipe's folder"


class Algorithm(Section):
    """One choice per axis. What a recipe leaves out comes from ``rl.preset``."""

    advantage: Annotated[str, known_or_own(ADVANTAGES)] = setting(
        "grpo", f"{', '.join(ADVANTAGES)}{_OR_YOURS}"
    )
    advantage_options: Options = Field(
        default_factory=dict, description="keyword arguments for your own function"
    )
    norm_by_std: bool = setting(
        True, "divide by the group's std; false = Dr.GRPO (arXiv 2503.20783)"
    )
    gae: GAE = GAE()
    ratio_level: Literal["token", "sequence", "sequence-token", "group"] = setting(
        "token", "of what it is: sequence = GSPO, sequence-token = GSPO-token, group = GEPO"
    )
    policy_loss: Annotated[str, known_or_own(POLICY_LOSSES)] = setting(
        "clip", f"{', '.join(POLICY_LOSSES)}{_OR_YOURS}"
    )
    clip_low: float = setting(
        0.2, "ratios below 1 - this are clipped (arXiv 1707.06347)", gt=0, le=1
    )
    clip_high: float = setting(0.2, "ratios above 1 + this are clipped; DAPO: 0.28", gt=0)
    clip_dual: float | None = setting(3.0, "dual clip's c (arXiv 1912.09729); null = off", gt=1)
    aggregation: Literal[
        "token-mean",
        "group-token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
    ] = setting(
        "seq-mean-token-mean",
        'weight of each token in the loss: docs/understand/algorithms.md, "Loss aggregation"',
    )
    kl: KL = KL()
    entropy_coef: float = setting(
        0.0, "entropy (nats per token) times this is taken from the loss", ge=0
    )
    importance_correction: ImportanceCorrection = ImportanceCorrection()
    positive_nll: PositiveNLL = PositiveNLL()
    overlong: Overlong | None = None
    mask_truncated: bool = setting(False, "leave rows cut off at max_new_tokens out of the loss")
    dynamic_sampling: DynamicSampling | None = None

    @property
    def traits(self) -> Traits:
        """What the estimator needs; a user's function gets what the recipe provides."""
        return ADVANTAGES.get(self.advantage, Traits())

    @property
    def is_custom(self) -> bool:
        """Whether the estimator is a user's function."""
        return ":" in self.advantage

    @field_serializer("advantage", "policy_loss")
    def _wherever_its_file_lies(self, value: str, info: SerializationInfo) -> str:
        """In keys a file's content counts, by its digest, and not its place."""
        return portable_name(value) if info.context is IN_KEYS else value

    @rule
    def _axes_agree(self) -> Iterator[str]:
        if self.ratio_level in SEQUENCE_RATIOS and self.aggregation != "seq-mean-token-mean":
            yield (
                f"ratio_level = {self.ratio_level!r} makes one loss per sequence and aggregation ="
                f" {self.aggregation!r} weighs tokens; set aggregation to 'seq-mean-token-mean'"
            )
        correction = self.importance_correction
        if correction.is_on and self.ratio_level == "group":
            level = f"importance_correction.level = {correction.level!r}"
            what = "importance_correction.reject" if correction.level == "none" else level
            yield (
                f"ratio_level = 'group' measures against the sampler already, and {what} would"
                " correct for it twice; set it to"
                f" {'[]' if correction.level == 'none' else repr('none')}"
            )
        if self.gae != GAE() and not self.traits.gamma and not self.is_custom:
            yield (
                f"gae is set and advantage = {self.advantage!r} reads neither gamma nor lambda;"
                " set advantage to 'gae' or leave gae out"
            )
        if self.advantage_options and not self.is_custom:
            yield (
                f"advantage_options belong to your own function and advantage ="
                f" {self.advantage!r} is built in; leave them out"
            )
