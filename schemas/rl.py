"""Recipe sections ``reward`` and ``rl``: the reward, and how the policy is trained on it.

``rl.preset`` names an algorithm (``schemas/presets.py``) and fills what a recipe leaves out; its
settings are ``rl.algorithm`` (``schemas/algorithm.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from schemas.algorithm import SEQUENCE_RATIOS, Algorithm, Options
from schemas.errors import did_you_mean
from schemas.names import REWARD_MODEL, brought_model, is_model, portable_name
from schemas.optimizer import Optimizer, rest_of
from schemas.presets import PRESETS, overlay
from schemas.rollout import RolloutSection
from schemas.section import Section, rule, setting

_CRITIC_OPTIMIZER = Optimizer(lr=1e-5)


class RewardFunction(Section):
    """One term of the reward."""

    name: str = Field(
        description="registered name, 'reward_model', 'environment', 'package.module:function', or"
        " 'path/to/file.py:function' from the recipe's folder"
    )
    weight: float = setting(1.0, "factor in the sum; 0 = reported only")
    options: Options = Field(default_factory=dict, description="keyword arguments of the function")
    batch: bool = setting(False, "called as f(rows) with all rows of one prompt, not per row")
    concurrency: int = setting(
        16, "rows of an `async` function under way in one worker", ge=1, le=1024
    )
    data_sources: tuple[str, ...] = setting(
        (), "it scores rows of these data sources; empty = of all"
    )
    styles: tuple[Literal["rule", "model", "judge", "code"], ...] = setting(
        (), "it scores rows of these values of reward_model.style; empty = all"
    )

    @property
    def identity(self) -> dict[str, Any]:
        """What its results depend on."""
        part = self.model_dump(mode="json", exclude={"weight", "concurrency"})
        return {**part, "name": portable_name(self.name)}

    def scores(self, data_source: str, style: str) -> bool:
        """Return whether rows of that data source and style are this function's."""
        return (not self.data_sources or data_source in self.data_sources) and (
            not self.styles or style in self.styles
        )


class RewardSection(Section):
    """Weighted sum of reward functions, scored in worker processes (docs/understand/algorithms.md,
    "Rewards").

    A function of weight 0 is reported only: it does not change the score, select a checkpoint or
    end a run, and a row on which it fails keeps its score. Its verdicts are used where verdicts are
    needed and no function with a weight gives any: accuracy metrics, dynamic sampling by accuracy,
    the positive-example loss, ranking of sampled preferences.
    """

    functions: tuple[RewardFunction, ...] = Field(min_length=1, description="terms of the sum")
    ensemble: Literal["sum", "min"] = setting(
        "sum",
        "what several reward models add: the sum of weight x score, or the least of"
        " them, which is harder to overfit (arXiv 2310.02743)",
    )
    offset: float = setting(0.0, "added to the sum; weight 2, offset -1: +1/-1")
    timeout_s: float = setting(10.0, "seconds that one function may take for one row", gt=0)
    memory_gib: float | None = setting(
        4.0, "address space (GiB) of the process of one reward function; null = no limit", gt=0
    )
    sandbox: Literal["auto", "namespaces", "landlock", "landlock-shared-uid", "none"] = setting(
        "auto",
        "how reward code confines programs of the policy: auto = the strongest level"
        " that holds on this machine; none = limits only, they can do whatever you can",
    )
    env: tuple[str, ...] = setting(
        (),
        "environment variables passed to reward functions besides PATH, HOME, locale"
        " and the like; no key, token or proxy is passed unless it is named here",
    )
    max_error_fraction: float = setting(
        0.05,
        "share of rows that reward code, judge or engine failed on, above which a run stops",
        ge=0,
        le=1,
    )
    max_timeout_fraction: float = setting(
        0.2, "share of rows that timed out, above which a run stops", ge=0, le=1
    )

    @rule
    def _an_ensemble_has_members(self) -> Iterator[str]:
        count = sum(is_model(f.name) and f.weight != 0 for f in self.functions)
        if self.ensemble == "min" and count < 2:
            yield (
                f"ensemble = 'min' is of several reward models and functions has {count} with a"
                " weight; name two, or leave it out"
            )

    @rule
    def _something_counts(self) -> Iterator[str]:
        if all(function.weight == 0 for function in self.functions):
            yield (
                "every weight of functions is 0, so all scores are equal and nothing is learnt;"
                " give one function a weight"
            )


# Rows that a fused update leaves out and scores all the same; all where there are fewer.
FUSED_SAMPLE = 64


class UpdateSection(Section):
    """How one batch of rollouts becomes optimizer steps."""

    mini_batches: int = setting(2, "optimizer steps per epoch", ge=1)
    epochs: int = setting(1, "passes over the rollouts", ge=1)
    shuffle: bool = setting(False, "permute prompts before cutting mini-batches")
    skip_zero_advantage: bool = setting(True, "leave rows of advantage 0 out of the forward pass")
    old_logprobs: Literal["rollout", "first", "own", "fused"] | None = setting(
        None,
        "old log-probs for ratios and importance_correction: rollout = the sampler's,"
        " so that the clip is around the sampler and no weight is left (bypass); first = those of"
        " the scoring before the update, which advantages and KL use; own = those of the update's"
        " own micro-batches, scored again before its first step, so that no ratio contains the"
        " rounding of another packing; fused = no scoring before the update: its single step's"
        " forward pass gives them, and the sampler is checked before the step, also on"
        f" {FUSED_SAMPLE} of the rows that do not train; null = own where ratios are of whole"
        " sequences or model.dtype is bfloat16, else first",
    )
    ema: float | None = setting(
        None,
        "decay of an average of the weights, of each optimizer step, in float32; it is"
        " validated beside them, and exported where it is better; null = none",
        gt=0,
        lt=1,
    )
    optimizer: Optimizer = Optimizer()

    @property
    def steps(self) -> int:
        """Optimizer steps of one update."""
        return self.mini_batches * self.epochs

    @property
    def fused(self) -> bool:
        """Whether the update's own forward pass gives old log-probs."""
        return self.old_logprobs == "fused"

    @property
    def bypass(self) -> bool:
        """Whether the sampler's log-probs are the old ones."""
        return self.old_logprobs == "rollout"


class Critic(Section):
    """The value model, with its own optimizer (docs/understand/algorithms.md, "Value loss")."""

    init: str = setting(
        "policy",
        "where its weights start: policy, with a head of 0; reward_model = the one that"
        " the run trains; or reward_model:NAME, one of reward_models with a path",
    )
    clip: float | None = setting(0.5, "range of a value's clip; null = off", gt=0)
    warmup_iterations: int = setting(0, "first iterations that train the critic alone", ge=0)
    optimizer: Annotated[Optimizer, rest_of(_CRITIC_OPTIMIZER)] = _CRITIC_OPTIMIZER

    @rule
    def _init_is_known(self) -> Iterator[str]:
        if self.init not in ("policy", REWARD_MODEL) and brought_model(self.init) is None:
            yield (
                f"init = {self.init!r} is not policy, {REWARD_MODEL} or {REWARD_MODEL}:NAME"
                f"{did_you_mean(self.init, ('policy', REWARD_MODEL))}; name one of them"
            )


class Ptx(Section):
    """PPO-ptx: adds coef x NLL of pretraining text to each policy step (arXiv 2203.02155 eq. 2)."""

    coef: float = setting(27.8, "weight, gamma (InstructGPT App. C.4)", gt=0)
    sequences_per_sample: float = setting(8.0, "texts per trajectory of the mini-batch", gt=0)
    path: str | None = setting(
        None, "Parquet or JSONL with a column text; null = the demonstrations"
    )
    max_tokens: int = setting(512, "tokens; longer texts are cut", ge=2)


class ValidationSection(Section):
    """Greedy validation during RL; the only split that may select a checkpoint."""

    every: int = setting(10, "iterations between validations", ge=1)
    prompts: int = setting(256, "validation prompts used", ge=1)
    stop_at: float | None = setting(
        None, "end RL once this validation figure holds `patience` times", gt=0
    )
    patience: int = setting(2, "validations in a row, for stop_at", ge=1)


class CheckpointSection(Section):
    """Which RL checkpoints, and records of iterations, are kept on disk."""

    every: int = setting(1, "iterations between checkpoints", ge=1)
    keep_last: int = setting(2, "newest checkpoints kept", ge=1)
    keep_best: int = setting(1, "best checkpoints kept, by validation", ge=1)
    keep_rollouts: int | None = setting(
        None,
        "newest iterations whose rollouts, rewards and advantages stay when"
        " `rl-pipeline store gc` is called after the run; null = all",
        ge=1,
    )


@dataclass(frozen=True, slots=True)
class GapBound:
    """How far apart the log-probs of sampler and learner may be on the same tokens.

    ``measure``: "max" or "mean" of |gap| in nats, or "mult" for exp(mean |gap|). ``option``: the
    dotted path of what sets ``limit``.
    """

    option: str
    measure: Literal["max", "mean", "mult"]
    limit: float


class RLSection(Section):
    """The RL stage: iterations of rollout, reward, advantage, update, sync."""

    enabled: bool = setting(
        True,
        "false = the run ends with the policy of the stage preference, and what this"
        " section says of learning is not read",
    )
    preset: str = setting("grpo", f"algorithm: {', '.join(PRESETS)}")
    iterations: int = setting(100, "critic warm-up, and those before a fork, included", ge=1)
    fork: str | None = setting(
        None,
        "KEY@ITERATION: the checkpoint of another run that RL continues from, as"
        " `rl-pipeline fork` sets it; null = begin with the policy",
        pattern=r"^[0-9a-zA-Z.]+@[0-9]+$",
    )
    algorithm: Algorithm = Algorithm()
    rollout: RolloutSection = RolloutSection()
    full_determinism: bool = setting(
        False,
        "claim that a rerun on the same machine gives the same bits: what cannot keep"
        " that is refused, as the schedule streaming and, while learning, CUDA operations without a"
        " deterministic kernel, which else only warn (as Hugging Face's full_determinism)",
    )
    update: UpdateSection = UpdateSection()
    critic: Critic | None = None
    ptx: Ptx | None = None
    validation: ValidationSection = ValidationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    max_logprob_gap: float | None = setting(
        None,
        "float32 only: largest |learner - sampler| log-prob of a batch (nats) above"
        " which the run stops; null = 1e-3, they agree to about 1e-4",
        gt=0,
        le=10,
    )
    max_mult_prob_error: float | None = setting(
        None,
        "bfloat16 only: exp(mean |learner - sampler| log-prob) of a batch above which"
        " the run stops; null = 1.05",
        gt=1,
        le=2,
    )
    max_canary_gap: float | None = setting(
        None,
        "mean |learner - engine| log-prob (nats) of a few tokens after a sync, above"
        " which the run stops; null = 1e-4 in float32, 0.1 in bfloat16",
        gt=0,
        le=10,
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        name = values.get("preset", "grpo")
        if name not in PRESETS:
            near = did_you_mean(str(name), PRESETS)
            raise ValueError(f"preset {name!r} is not one of {', '.join(PRESETS)}{near}")
        return overlay(PRESETS[name], values)

    @property
    def checkpoints_kept(self) -> int:
        """The newest checkpoints kept: also those whose policies sample for iterations to come."""
        return max(self.checkpoint.keep_last, self.rollout.max_staleness + 1)

    @property
    def actor_iterations(self) -> int:
        """Iterations that train the policy: all but the critic's warm-up."""
        return self.iterations - (self.critic.warmup_iterations if self.critic else 0)

    @rule
    def _batches_divide(self) -> Iterator[str]:
        prompts, mini = self.rollout.prompts, self.update.mini_batches
        if prompts % mini:
            yield (
                f"rollout.prompts = {prompts} is not a multiple of update.mini_batches = {mini};"
                f" set update.mini_batches to a divisor of {prompts}"
            )

    @rule
    def _kl_coef_stays_positive(self) -> Iterator[str]:
        kl = self.algorithm.kl  # an iteration's relative error counts up to .2
        least = self.rollout.prompts * self.rollout.samples // 5 + 1
        if kl.controller == "adaptive" and kl.horizon < least:
            yield (
                f"algorithm.kl.horizon = {kl.horizon} sequences would let one iteration make the"
                f" coefficient negative; set it to at least {least}, such as 10000"
            )

    @rule
    def _estimator_has_its_inputs(self) -> Iterator[str]:
        name, traits = self.algorithm.advantage, self.algorithm.traits
        groups = {
            f"algorithm.advantage = {name!r}": traits.group,
            "algorithm.ratio_level = 'group'": self.algorithm.ratio_level == "group",
            "algorithm.dynamic_sampling": self.algorithm.dynamic_sampling is not None,
        }
        for what, needed in groups.items():
            if needed and self.rollout.samples < 2:
                yield (f"{what} compares samples within a group; set rollout.samples to at least 2")
        if traits.critic and self.critic is None:
            yield (
                f"algorithm.advantage = {name!r} needs a critic and critic is null; set rl.critic"
                " to {} or take a preset with a critic (ppo, vapo)"
            )
        if self.critic and not traits.critic and not self.algorithm.is_custom:
            yield (
                f"critic is set and algorithm.advantage = {name!r} reads no values; set rl.critic"
                " to null or algorithm.advantage to 'gae'"
            )
        if traits.greedy and not self.rollout.greedy_baseline:
            yield (
                f"algorithm.advantage = {name!r} needs the reward of a greedy answer; set"
                " rollout.greedy_baseline to true"
            )
        spare = not traits.greedy and not self.algorithm.is_custom
        if self.rollout.greedy_baseline and spare:
            yield (
                f"rollout.greedy_baseline is true and algorithm.advantage = {name!r} reads no"
                " greedy answer; set it to false or algorithm.advantage to 'remax'"
            )

    @rule
    def _stale_rows_can_be_used(self) -> Iterator[str]:
        """What goes wrong where the policy that samples is older than the one that trains."""
        if self.rollout.max_staleness == 0:
            return
        stale, algorithm = f"rollout.max_staleness = {self.rollout.max_staleness}", self.algorithm
        by_sampler = algorithm.ratio_level == "group" or self.update.bypass
        if not by_sampler and not algorithm.importance_correction.is_on:
            yield (
                f"{stale} trains on rows of an older policy, and nothing accounts for that; set"
                " algorithm.importance_correction.level to token or sequence, or measure against"
                " the sampler: algorithm.ratio_level = 'group' (GEPO) or update.old_logprobs ="
                " 'rollout'"
            )
        if self.update.ema is not None:
            yield (
                f"{stale} and update.ema = {self.update.ema:g}: engines that sample ahead hold no"
                " average to validate; set update.ema to null or rollout.max_staleness to 0"
            )
        if self.checkpoint.every > 1:
            yield (
                f"{stale} and checkpoint.every = {self.checkpoint.every}: a run that was killed"
                " samples again what was under way, from the policies of the last iterations; set"
                " checkpoint.every to 1"
            )
        filtered = algorithm.dynamic_sampling
        if filtered and filtered.metric == "final_score" and algorithm.kl.where == "reward":
            yield (
                f"{stale} and algorithm.dynamic_sampling.metric = 'final_score' with algorithm.kl"
                ".where = 'reward': which groups are drawn would depend on the policy that trains,"
                " which is not known yet; set the metric to score or accuracy"
            )

    @rule
    def _bits_can_be_claimed(self) -> Iterator[str]:
        if self.full_determinism and self.rollout.schedule == "streaming":
            yield (
                "full_determinism = true claims that a rerun gives the same bits, and"
                " rollout.schedule = 'streaming' lets time decide which turns share a batch; set"
                " rollout.schedule to lockstep, or leave full_determinism out"
            )

    @rule
    def _old_logprobs_can_be_had(self) -> Iterator[str]:
        """rollout.top_p and top_k, which would make the sampler another distribution, are refused
        for every run."""
        given, algorithm, level = self.update, self.algorithm, self.algorithm.ratio_level
        corrects, steps = algorithm.importance_correction.is_on, given.steps
        from_reward = algorithm.kl.uses_reference and algorithm.kl.where == "reward"
        corrected = "algorithm.importance_correction (level, reject)"
        problems = {
            "fused": {
                f"are of an update's only step, and mini_batches x epochs makes {steps}": steps > 1,
                "come after algorithm.kl.where = 'reward' takes the KL from them": from_reward,
                f"come after {corrected} weighs or masks by them": corrects,
                "are not scored where algorithm.kl.where = 'monitor' would measure estimator ="
                " 'full'": algorithm.kl.where == "monitor" and algorithm.kl.estimator == "full",
            },
            "rollout": {
                f"are the sampler's, for which {corrected} would correct twice": corrects,
                "are the sampler's, which algorithm.ratio_level = 'group' measures against"
                " already": level == "group",
                f"put the sampler's rounding into ratios, and algorithm.ratio_level = {level!r}"
                " clips them in a range narrower than it": level in SEQUENCE_RATIOS[:2],
                "are the denominator of a ratio, and algorithm.policy_loss = 'reinforce' reads"
                " none": algorithm.policy_loss == "reinforce",
            },
            "own": {
                "are of the learner, and algorithm.ratio_level = 'group' measures against the"
                " sampler's": level == "group",
            },
        }
        for problem, holds in problems.get(given.old_logprobs or "", {}).items():
            if holds:
                yield (
                    f"old log-probs of update.old_logprobs = {given.old_logprobs!r} {problem};"
                    " change one of the two, or leave update.old_logprobs out"
                )

    @rule
    def _switches_can_act(self) -> Iterator[str]:
        steps, level = self.update.steps, self.algorithm.ratio_level
        if self.algorithm.policy_loss == "reinforce" and (steps > 1 or level != "token"):
            idle = f"algorithm.ratio_level = '{level}' would do nothing; set it to token"
            free = f"nothing bounds later steps of {steps}; set update.mini_batches and epochs to 1"
            why = free if steps > 1 else idle
            yield f"algorithm.policy_loss = 'reinforce' reads no ratio: {why}, or take another loss"
        if self.critic and self.critic.warmup_iterations >= self.iterations:
            yield (
                f"critic.warmup_iterations = {self.critic.warmup_iterations} leaves none of"
                f" iterations = {self.iterations} to the policy; raise iterations or lower it"
            )

    def overlong_rules(self, turns: int) -> Iterator[str]:
        """Yield a sentence if ``algorithm.overlong`` cannot act on responses of ``turns`` turns."""
        overlong, longest = self.algorithm.overlong, self.rollout.max_new_tokens * turns
        if overlong is None:
            return
        limit = overlong.max_tokens or longest
        cache = limit // 5 if overlong.cache_tokens is None else overlong.cache_tokens
        if cache > limit:
            yield (
                f"rl.algorithm.overlong.cache_tokens = {cache} exceeds max_tokens = {limit}; lower"
                " it"
            )
        if limit - cache >= longest:
            of_turns = f" x {turns} turns = {longest}" if turns > 1 else ""
            yield (
                f"rl.algorithm.overlong punishes from {limit - cache} tokens on and"
                f" rl.rollout.max_new_tokens = {self.rollout.max_new_tokens}{of_turns} ends every"
                " response before; lower rl.algorithm.overlong.max_tokens or raise"
                " rl.rollout.max_new_tokens"
            )
