"""The recipe: one frozen tree that fully describes a run. A deployment is a recipe.

``Recipe.slice_for(stage)`` is the part of it that a stage's result depends on (its cache key);
hardware, store, tracking and retrain are in no slice.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from schemas.algorithm import SEQUENCE_RATIOS
from schemas.data import DataSection, EnvironmentSource
from schemas.environment import EnvironmentSection
from schemas.errors import did_you_mean
from schemas.evolve import EvolveSection
from schemas.hardware import HardwareSection
from schemas.judges import Judges, WinRate, judge_of, may_verify, misused, win_rate_rules
from schemas.licenses import LicenseName
from schemas.model import ModelSection
from schemas.names import (
    BASE_MODEL,
    ENVIRONMENT,
    PREFERENCE,
    REWARD_MODEL,
    brought_model,
    is_model,
    ranking_term,
)
from schemas.optimizer import Optimizer, Schedule
from schemas.preference import PreferenceSection, export_rules
from schemas.retrain import RetrainSection, retrain_rules
from schemas.reward_model import (
    BroughtRewardModels,
    RewardModelSection,
    SampledPreferences,
    ranking_rules,
)
from schemas.rl import GapBound, RewardSection, RLSection, rest_of
from schemas.rollout import with_rollout_stop
from schemas.sampling import StopTexts, Temperature
from schemas.section import Section, rule, setting
from schemas.slices import own_part

_SFT_OPTIMIZER = Optimizer(lr=1e-5, betas=(0.9, 0.95), schedule=Schedule(kind="cosine"))


class SFTSection(Section):
    """SFT warm start on the demonstrations."""

    enabled: bool = setting(True, "false = RL starts from the base model")
    epochs: int = setting(1, "passes over the demonstrations", ge=1)
    max_steps: int | None = setting(None, "most optimizer steps", ge=1)
    batch_size: int = setting(64, "sequences per optimizer step", ge=1)
    max_tokens: int = setting(1024, "tokens; longer ones are rejected", ge=8)
    checkpoint_every: int = setting(200, "steps between checkpoints", ge=1)
    optimizer: Annotated[Optimizer, rest_of(_SFT_OPTIMIZER)] = _SFT_OPTIMIZER


class EvaluateSection(Section):
    """Greedy and sampled evaluation on the test split."""

    checkpoints: tuple[Literal["base", "sft", "preference", "rl"], ...] = setting(
        ("base", "sft", "rl"), "weights that are compared", min_length=1
    )
    max_prompts: int | None = setting(None, "of each source and subset", ge=1)
    samples: int = setting(
        8, "sampled responses per prompt; 1 = greedy only; of base none beside sft", ge=1
    )
    pass_k: tuple[int, ...] = setting(
        (1, 4, 8), "k of pass@k: a right answer among k (arXiv 2107.03374)"
    )
    temperature: Temperature = setting(1.0, "of the samples; divides the logits")
    top_p: float = setting(1.0, "probability mass kept; 1 = all", gt=0, le=1)
    max_new_tokens: int = setting(512, "tokens per response", ge=1)
    stop: StopTexts = setting((), "texts that end an answer; left out = those of rl.rollout.stop")
    completions_shown: int = setting(8, "sample completions on the run page", ge=0)
    win_rate: WinRate | None = setting(None, "null = no judge compares answers")

    @model_validator(mode="before")
    @classmethod
    def _k_of_samples(cls, values: Any) -> Any:
        """Leave those of the default ``pass_k`` out that need more than the samples set."""
        samples = values.get("samples") if isinstance(values, Mapping) else None
        if not isinstance(samples, int) or "pass_k" in values:
            return values
        known = cls.model_fields["pass_k"].default
        return {**values, "pass_k": tuple(k for k in known if k <= samples)}

    @rule
    def _k_within_samples(self) -> Iterator[str]:
        too_large = [k for k in self.pass_k if k > self.samples or k < 1]
        if too_large:
            yield (
                f"pass_k = {too_large[0]} needs between 1 and samples = {self.samples} responses;"
                " raise samples or drop that k"
            )


class ExportSection(Section):
    """The Hugging Face directory that a run exports."""

    dtype: Literal["float32", "bfloat16"] | None = setting(None, "null = model.dtype")
    license: LicenseName | None = setting(
        None,
        "in the model card: a license name of the hub or an SPDX id, e.g. apache-2.0;"
        " null = the base model's, where its own card names one",
    )


class TrackingSection(Section):
    """wandb: a view of the metrics tables; offline unless WANDB_API_KEY is set."""

    wandb: bool = setting(True, "false = no curves for wandb")
    project: str = setting("rl-pipeline", "wandb's project")
    entity: str | None = setting(None, "wandb's user or team; null = your own")


class Recipe(Section):
    """Everything a run depends on."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="name of run and deployment")
    description: str = setting("", "a sentence for lists and the run page")
    seed: int = setting(0, "of every draw: data, order, samples, weights", ge=0)
    store: str = setting("runs/store", "artifact root: directory or fsspec URL")
    model: ModelSection
    data: DataSection
    sft: SFTSection = SFTSection()
    preference: PreferenceSection | None = setting(None, "null = no DPO or KTO before RL")
    reward_model: RewardModelSection | None = setting(None, "null = no reward model is trained")
    reward_models: BroughtRewardModels = Field(
        default_factory=dict,
        description="reward models that you bring, by name: reward.functions names one as"
        " reward_model:NAME",
    )
    reward: RewardSection
    judges: Judges = Field(default_factory=dict)
    environment: EnvironmentSection | None = setting(None, "null = an episode is one turn")
    rl: RLSection = RLSection()
    evaluate: EvaluateSection = EvaluateSection()
    evolve: EvolveSection = EvolveSection()
    export: ExportSection = ExportSection()
    hardware: HardwareSection = HardwareSection()
    tracking: TrackingSection = TrackingSection()
    retrain: RetrainSection | None = setting(None, "null = never retrained")

    _answers_end_alike = model_validator(mode="before")(with_rollout_stop)

    @property
    def sampled_preferences(self) -> dict[str, SampledPreferences]:
        """The preferences that are sampled, by dotted path."""
        section = self.reward_model.preferences if self.reward_model else None
        sampled = isinstance(section, SampledPreferences)
        return {"reward_model.preferences": section} if sampled else {}

    @property
    def comparing(self) -> dict[str, str]:
        """Names of the judges that compare responses, by the dotted path of what asks them."""
        scoring = {judge_of(function) for function in self.reward.functions}
        found = {
            f"{path}.ranked_by": section.judge
            for path, section in self.sampled_preferences.items()
            if section.judge is not None and section.judge not in scoring
        }
        if self.evaluate.win_rate is not None:
            found["evaluate.win_rate.judge"] = self.evaluate.win_rate.judge
        return found

    def slice_for(self, stage: str) -> dict[str, Any]:
        """Return the JSON-ready part of the recipe that ``stage`` depends on."""
        part = own_part(self, stage)
        if stage == REWARD_MODEL:
            # It ranks by verdicts: which functions count matters, the weights do not.
            terms = [f for f in self.reward.functions if not is_model(f.name)]
            part["reward"] = [{**f.identity, "counts": f.weight != 0} for f in terms]
        elif "reward" in part:
            terms = [{**f.identity, "weight": f.weight} for f in self.reward.functions]
            part["reward"]["functions"] = terms
        asked = [judge_of(function) for function in self.reward.functions]
        asked += [name for path, name in self.comparing.items() if path.startswith(f"{stage}.")]
        judges = {name: judge.identity for name, judge in self.judges.items() if name in asked}
        if "reward" in part and judges:
            part["judges"] = judges
        models = self.reward_models
        if stage == REWARD_MODEL:
            ranked = (part[stage] or {}).get("preferences", {})
            if "ranked_by" in ranked:
                ranked["ranked_by"] = ranking_term(ranked["ranked_by"])
            ranks = brought_model(ranked.get("ranked_by", ""))
            models = {name: model for name, model in models.items() if name == ranks}
        if "reward" in part and models:
            part["reward_models"] = {name: model.identity for name, model in models.items()}
        if self.environment is not None and stage in _stages_of_environment(self):
            part["environment"] = self.environment.identity
        return part

    @property
    def max_turns(self) -> int:
        """Most turns of the policy in one trajectory."""
        return 1 if self.environment is None else self.environment.turns

    @property
    def scores_own_logprobs(self) -> bool:
        """Whether the update scores its own micro-batches (``rl.update.old_logprobs``).

        Never where old log-probs are not read: with a single step per update the ratios are exactly
        1, and group ratios use the sampler's log-probs.
        """
        update, level = self.rl.update, self.rl.algorithm.ratio_level
        if update.steps == 1 or level == "group":
            return False
        if update.old_logprobs is not None:
            return update.old_logprobs == "own"
        return level in SEQUENCE_RATIOS or self.model.dtype == "bfloat16"

    @property
    def has_reference_worker(self) -> bool:
        """Whether a worker holds a frozen copy of the policy for the KL.

        The learner itself holds it for the exact KL, and has it below the adapter that it trains.
        """
        kl = self.rl.algorithm.kl
        apart = kl.estimator != "full" and self.model.adapter_of("rl") is None
        return self.rl.enabled and kl.uses_reference and apart

    @property
    def sampler_gap_bound(self) -> GapBound:
        """Return the bound on the gap between sampler and learner, by ``model.dtype``.

        float32: on the maximum. bfloat16: on exp(mean |gap|), which a single token cannot exceed;
        NeMo-RL's ``token_mult_prob_error`` is mean(exp |gap|), equal to first order, and 1.05 is
        the limit in its own tests.
        """
        rl = self.rl
        if self.model.dtype == "float32":
            return GapBound("rl.max_logprob_gap", "max", rl.max_logprob_gap or 1e-3)
        return GapBound("rl.max_mult_prob_error", "mult", rl.max_mult_prob_error or 1.05)

    @property
    def canary_bound(self) -> GapBound:
        """Return the bound on the gap between learner and engine on a sync's canary tokens.

        The bound is on the mean, which a wrong layer must move. A maximum would fail on rounding: a
        single unlikely token can be off in bfloat16 by the spacing of its logit (0.125 from 16 on),
        in float32 by more than 1e-4 in one sync of thousands.
        """
        default = 1e-4 if self.model.dtype == "float32" else 0.1
        return GapBound("rl.max_canary_gap", "mean", self.rl.max_canary_gap or default)

    def longest_sequence(self, new_tokens: int) -> int:
        """Return the most tokens of a prompt and what follows it, ``new_tokens`` a turn."""
        if self.environment is None:
            return self.data.max_prompt_tokens + new_tokens
        return self.environment.tokens(self.data.max_prompt_tokens, new_tokens)

    @rule
    def _sections_fit(self) -> Iterator[str]:
        yield from _environment_rules(self)
        yield from _context_rules(self)
        yield from retrain_rules(self)
        yield from export_rules(self)
        yield from win_rate_rules(self)
        yield from self.rl.overlong_rules(self.max_turns)
        ema = self.rl.update.ema
        if ema is not None and self.hardware.learner.zero_stage == 3:
            yield (
                f"rl.update.ema = {ema:g} averages weights that are whole on each rank, and"
                " hardware.learner.zero_stage = 3 splits them; set zero_stage to 2 or ema to null"
            )

        stale = self.rl.rollout.max_staleness
        if stale and self.hardware.rollout.sleep:
            yield (
                f"hardware.rollout.sleep = true and rl.rollout.max_staleness = {stale}: engines"
                " sample while learners train; set one to false, or the other to 0"
            )

    @property
    def policies(self) -> tuple[str, ...]:
        """The stages that train the policy, in order; the last one's is exported."""
        stages = {
            "sft": self.sft.enabled,
            PREFERENCE: self.preference is not None,
            "rl": self.rl.enabled,
        }
        return tuple(stage for stage, runs in stages.items() if runs)

    @rule
    def _reward_models_are_those_named(self) -> Iterator[str]:
        named = {brought_model(function.name) for function in self.reward.functions}
        start = None if self.rl.critic is None else brought_model(self.rl.critic.init)
        named = (named | {start}) - {None}
        if start in self.reward_models and self.reward_models[start].path is None:
            yield (
                f"rl.critic.init = '{REWARD_MODEL}:{start}' is served at a url, and a critic is"
                f" trained; give reward_models.{start} a path or set rl.critic.init to 'policy'"
            )
        for name in sorted(named - self.reward_models.keys(), key=str):
            yield (
                f"the recipe names 'reward_model:{name}' and reward_models has"
                f" {', '.join(self.reward_models) or 'none'}; add reward_models.{name} with its"
                " path"
                f"{did_you_mean(str(name), self.reward_models)}"
            )
        for name in sorted(self.reward_models.keys() - named):
            yield (
                f"reward_models.{name} is read by nothing; name 'reward_model:{name}' in"
                " reward.functions or rl.critic.init, or take it out"
            )

    @rule
    def _reward_model_is_trained(self) -> Iterator[str]:
        used = any(function.name == REWARD_MODEL for function in self.reward.functions)
        if used and self.reward_model is None:
            yield (
                f"reward.functions names {REWARD_MODEL!r} and the section reward_model is null;"
                " set reward_model to {} or reward with functions"
            )
        starts = self.rl.critic is not None and self.rl.critic.init == REWARD_MODEL
        if starts and self.reward_model is None:
            yield (
                "rl.critic.init = 'reward_model' and the section reward_model is null; set"
                " reward_model to {} or rl.critic.init to 'policy'"
            )
        other = None if self.reward_model is None else self.reward_model.base
        if other is not None and self.model.adapter_of(REWARD_MODEL) is not None:
            yield (
                f"reward_model.base = '{other}' is another model than the one that model.adapter is"
                f" put on; leave 'reward_model' out of model.adapter.stages or set base to null"
            )
        if self.reward_model is not None and not used and not starts:
            yield (
                "the section reward_model trains a model that neither reward.functions nor"
                " rl.critic.init reads; name it there or set reward_model to null"
            )
        ptx = self.rl.ptx
        if ptx is not None and ptx.path is None and not self.sft.enabled:
            yield (
                "rl.ptx mixes in demonstrations and sft.enabled is false, so none are prepared; set"
                " rl.ptx.path to a file of text, sft.enabled to true or rl.ptx to null"
            )

    @rule
    def _has_verdicts_where_needed(self) -> Iterator[str]:
        yield from misused(self.judges, self.reward, self.comparing)
        algorithm = self.rl.algorithm
        rule_rewards = [f for f in self.reward.functions if may_verify(f, self.judges)]
        filtered = algorithm.dynamic_sampling
        by_verdict = filtered is not None and filtered.metric == "accuracy"
        positive = algorithm.positive_nll
        for path, section in self.sampled_preferences.items():
            yield from ranking_rules(path, section, self)
        if not rule_rewards and by_verdict:
            yield (
                "rl.algorithm.dynamic_sampling.metric = 'accuracy' and reward.functions holds no"
                " function that checks correctness; add one of weight 0 or set metric to 'score'"
            )
        if not rule_rewards and positive.coef > 0 and positive.threshold is None:
            yield (
                "rl.algorithm.positive_nll needs correct samples and reward.functions holds no"
                " function that checks correctness; set positive_nll.threshold"
            )

    @rule
    def _adapter_is_held_whole(self) -> Iterator[str]:
        adapter = self.model.adapter
        if adapter is not None and self.hardware.learner.zero_stage == 3:
            yield (
                "model.adapter and hardware.learner.zero_stage = 3: ZeRO-3 would gather the frozen"
                " weights for every pass; set zero_stage to auto, 0, 1 or 2"
            )
        chains = list(combinations(self.policies, 2))
        if self.rl.critic is not None and self.rl.critic.init == REWARD_MODEL:
            chains.append((REWARD_MODEL, "rl"))
        for first, second in chains:
            both = adapter is not None and {first, second} <= set(adapter.stages)
            if adapter is not None and adapter.base == "nf4" and both:
                yield (
                    f"model.adapter.base = 'nf4' and stages {first} and {second}: what {first} made"
                    f" would be quantised once more, which changes it; leave {first} out of"
                    " model.adapter.stages, or set base to full"
                )
        if self.model.from_scratch and self.sft.enabled and self.model.adapter_of("sft"):
            yield (
                "model.adapter trains in sft and model.from_scratch draws the weights that it would"
                " leave as they are; set model.adapter.stages to [rl]"
            )

    @rule
    def _vllm_has_a_kernel(self) -> Iterator[str]:
        scratch = self.model.from_scratch
        if scratch and self.hardware.takes_vllm_on_cpu(scratch.parameters):
            size = scratch.hidden_size // scratch.num_heads
            if size < 32:
                yield (
                    f"model.from_scratch.hidden_size / num_heads = {size} is below 32, for which"
                    " vLLM has no CPU kernel; lower num_heads, or sample with 'transformers'"
                )

    @rule
    def _precision_fits(self) -> Iterator[str]:
        if self.model.dtype == "bfloat16" and self.hardware.learner.zero_stage == 0:
            yield (
                "model.dtype = 'bfloat16' needs hardware.learner.zero_stage >= 1: ZeRO-0"
                " keeps no fp32 master weights; set it to 1"
            )
        largest, typical = self.rl.max_logprob_gap, self.rl.max_mult_prob_error
        if self.model.dtype == "bfloat16" and largest is not None:
            yield (
                f"rl.max_logprob_gap = {largest:g} bounds the largest gap of a batch, which in"
                " bfloat16 depends on how many tokens there are (0.48 nats in 3,916 tokens of a"
                " good run, trl issue 6789); remove it, rl.max_mult_prob_error bounds the mean"
            )
        if self.model.dtype == "float32" and typical is not None:
            yield (
                f"rl.max_mult_prob_error = {typical:g} bounds the mean gap, which can hide a wrong"
                " token, and in float32 every token agrees; remove it, rl.max_logprob_gap bounds"
                " the largest"
            )


def _environment_rules(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence where an environment is named and not set, or cannot be used."""
    named = any(function.name == ENVIRONMENT for function in recipe.reward.functions)
    if recipe.environment is None:
        if named:
            yield (
                "reward.functions names 'environment' and the section environment is null; set"
                " it, or take the function out"
            )
        if any(isinstance(source, EnvironmentSource) for source in recipe.data.sources):
            yield (
                "data.sources holds kind environment and the section environment is null; set"
                " environment.name"
            )
        return
    if recipe.reward_model and isinstance(recipe.reward_model.preferences, SampledPreferences):
        yield (
            "reward_model.preferences are sampled as single answers and environment ="
            f" {recipe.environment.name!r} plays episodes; take preferences from a file, or set"
            " environment to null"
        )


def _context_rules(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence where the longest episode does not fit into ``model.max_tokens``."""
    limits = {"evaluate.max_new_tokens": recipe.evaluate.max_new_tokens}
    if recipe.rl.enabled:
        limits = {"rl.rollout.max_new_tokens": recipe.rl.rollout.max_new_tokens, **limits}
    if recipe.reward_model and isinstance(recipe.reward_model.preferences, SampledPreferences):
        sampled = recipe.reward_model.preferences.max_new_tokens
        limits["reward_model.preferences.max_new_tokens"] = sampled
    for path, new_tokens in limits.items():
        needed = recipe.longest_sequence(new_tokens)
        if needed > recipe.model.max_tokens:
            what = path if recipe.environment is None else recipe.environment.turns_of(path)
            yield (
                f"data.max_prompt_tokens + {what} = {needed} exceeds"
                f" model.max_tokens = {recipe.model.max_tokens}; raise model.max_tokens or lower"
                f" {'one of the two' if recipe.environment is None else 'one of them'}"
            )
    scratch = recipe.model.from_scratch
    if recipe.environment and recipe.environment.observation >= recipe.model.max_tokens:
        yield (
            "environment.max_observation_tokens ="
            f" {recipe.environment.max_observation_tokens} leaves no room for a turn in"
            f" model.max_tokens = {recipe.model.max_tokens}; lower it"
        )
    if scratch and scratch.max_position_embeddings < recipe.model.max_tokens:
        yield (
            f"model.from_scratch.max_position_embeddings = {scratch.max_position_embeddings} is"
            f" below model.max_tokens = {recipe.model.max_tokens}; raise it"
        )


def _stages_of_environment(recipe: Recipe) -> set[str]:
    """Return the stages whose results depend on the environment: it may make the data."""
    makes_data = any(isinstance(source, EnvironmentSource) for source in recipe.data.sources)
    scratch = makes_data and recipe.model.from_scratch is not None
    return {"prepare_data", "rl", "evaluate", *([BASE_MODEL] if scratch else [])}
