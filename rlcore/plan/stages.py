"""Time of each stage, from batch arithmetic, model shape and assumed rates. Pure.

These are planning figures: times rest on ``Rates``, assumptions and not promises.
"""

from dataclasses import dataclass

from rlcore.models.classifier import parameters_of
from rlcore.models.shape import ModelShape
from rlcore.plan.batches import (
    BatchPlan,
    evaluation_tokens,
    preference_tokens,
    ptx_sequences,
    sampled_sequences,
)
from rlcore.plan.machine import Fit
from schemas.names import BASE_MODEL, PREFERENCE, REWARD_MODEL
from schemas.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Rates:
    """What times are computed from. ASSUMPTIONS: right within a factor of two or so, where fitted.

    FLOPs per token: 2 per parameter forward, 6 with backward.
    """

    device: str
    source: str
    learner_flops: float  # FLOP/s that one rank sustains
    sampler_tokens_per_s: float  # most tokens/s of one engine, however small the model
    sampler_parameter_tokens_per_s: float  # parameters x tokens/s of one engine, large models
    start_s: float  # cluster, engine and learner start of one stage

    def learner_s(self, parameters: int, tokens: float, passes: float, ranks: int) -> float:
        """Seconds for ``tokens`` at ``passes`` forward passes' worth of work (backward = 2)."""
        return 2 * parameters * tokens * passes / (self.learner_flops * ranks)

    def sampler_s(self, parameters: int, tokens: float, engines: int) -> float:
        """Seconds to sample ``tokens``: fixed cost per token plus the model's own."""
        per_token = 1 / self.sampler_tokens_per_s + parameters / self.sampler_parameter_tokens_per_s
        return tokens * per_token / engines


def cpu_rates(threads: int) -> Rates:
    """Rates of avx512 cores: 30 GFLOP/s a thread in packed fp32 steps, vLLM on one thread.

    Fitted to 34k trained tokens/s at 0.36 M parameters on two threads, and to 11.9k and 0.86k
    sampled tokens/s at 1 M and 43 M.
    """
    return Rates(
        device=f"CPU, {threads} learner thread(s)",
        source="fitted to two avx512 cores, fp32, otherwise idle",
        learner_flops=30e9 * threads,
        sampler_tokens_per_s=12e3,
        sampler_parameter_tokens_per_s=4e10,
        start_s=45.0,
    )


def gpu_rates() -> Rates:
    """Rates of an H100-class GPU: 30 % of 989 TFLOP/s, decoding at a third of the memory bound.

    The decode figure is 3.35 TB/s over 2 bytes a parameter at 256 sequences at once, times 0.3.
    """
    return Rates(
        device="one H100-class GPU",
        source="30 % of peak bf16 FLOP/s; 30 % of the decode bandwidth bound; never measured here",
        learner_flops=0.3 * 989e12,
        sampler_tokens_per_s=100e3,
        sampler_parameter_tokens_per_s=0.3 * 3.35e12 / 2 * 256,
        start_s=120.0,
    )


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """One stage: seconds when sequences are half as long as allowed and when all are longest, and
    the bytes it leaves on disk in the latter case. ``note`` names what was not known."""

    stage: str
    half_s: float
    longest_s: float
    disk_bytes: int
    note: str = ""


def stage_estimates(fit: Fit, shape: ModelShape, rates: Rates) -> tuple[StageEstimate, ...]:
    """Return an estimate per stage of ``fit``, whose model has ``shape``, in the order in which
    they run."""
    return tuple(_estimate(stage, fit, shape, rates) for stage in fit.disk)


def _estimate(stage: str, fit: Fit, shape: ModelShape, rates: Rates) -> StageEstimate:
    recipe, data, disk = fit.recipe, fit.data, fit.disk[stage]
    # weights are written, read back and scored once: bounded by 0.2 GB/s of disk and hashing
    fixed = {BASE_MODEL: 2 + disk / 0.2e9, "export": 5 + 3 * disk / 0.2e9}
    if stage == "prepare_data":
        if data.train is None:
            return StageEstimate(stage, 0.0, 0.0, disk, "rows unknown until they are counted")
        rows = data.train + (data.validation or 0) + sum(data.test or ())
        rows += data.demonstrations or 0
        fixed[stage] = 2 + rows / 5e3  # rows/s of templating and near-duplicates
    if stage in fixed:
        return StageEstimate(stage, fixed[stage], fixed[stage], disk)
    note, longest = "", None
    if stage == "sft":
        longest = _supervised_s(recipe, shape, fit.batches.sft, rates)
        note = "time unknown until demonstrations are counted; set sft.max_steps to bound it"
    elif stage == PREFERENCE:
        longest = _supervised_s(recipe, shape, fit.batches.preference, rates)
        note = "time unknown until preferences are counted; set preference.max_steps to bound it"
    elif stage == REWARD_MODEL:  # sampling of the preferences, their training
        longest = _supervised_s(recipe, shape, fit.batches.reward_model, rates)
        note = "time unknown until preferences are counted"
        if longest is not None:
            engines = recipe.hardware.rollout.engines
            longest += rates.sampler_s(shape.parameters, preference_tokens(recipe), engines)
    elif stage == "rl":
        longest = rl_seconds(fit, shape, rates).total
    elif stage != "evaluate":
        raise AssertionError(f"stage {stage} has no estimate")
    elif data.test is None:
        note = "test rows unknown until they are counted"
    else:
        tokens, _ = evaluation_tokens(recipe, data)
        engines, checkpoints = recipe.hardware.rollout.engines, len(recipe.evaluate.checkpoints)
        longest = checkpoints * rates.sampler_s(shape.parameters, tokens, engines)
    if longest is None:
        return StageEstimate(stage, 0.0, 0.0, disk, note)
    filtered = stage == "rl" and recipe.rl.algorithm.dynamic_sampling is not None
    note = "one generation round an iteration; filtered groups add more" if filtered else ""
    return StageEstimate(stage, rates.start_s + longest / 2, rates.start_s + longest, disk, note)


def _supervised_s(
    recipe: Recipe, shape: ModelShape, batch: BatchPlan | None, rates: Rates
) -> float | None:
    """Seconds of all steps of ``batch``; None where their number is not known."""
    tokens = None if batch is None else batch.most_tokens
    if tokens is None:
        return None
    return rates.learner_s(shape.parameters, tokens, 3, recipe.hardware.learner.ranks)


@dataclass(frozen=True, slots=True)
class RLSeconds:
    """Seconds of all iterations: of ``drawing`` rows, which is sampling them and what the reward
    model takes, of ``training`` on them, and of ``validation``. ``ahead``: the first two go on at
    once (``rl.rollout.max_staleness``)."""

    iterations: int
    drawing: float
    training: float
    validation: float
    ahead: bool

    def iteration(self, *, ahead: bool) -> float:
        """Seconds of an iteration: of the longer of both, or of one after the other."""
        both = (self.drawing, self.training)
        return (max(both) if ahead else sum(both)) / self.iterations

    @property
    def total(self) -> float:
        """Seconds of all. While the first iteration is drawn nothing trains, and nothing is drawn
        while the last one trains."""
        alone = self.iteration(ahead=False)
        rest = (self.iterations - 1) * self.iteration(ahead=self.ahead)
        return alone + rest + self.validation


def rl_seconds(fit: Fit, shape: ModelShape, rates: Rates) -> RLSeconds:
    """Return the seconds of RL when all sequences are longest."""
    recipe, data, rl = fit.recipe, fit.data, fit.batches.rl
    assert rl is not None, "a recipe without RL has no seconds of it"
    section, engines = recipe.rl, recipe.hardware.rollout.engines
    response = recipe.max_turns * section.rollout.max_new_tokens
    sequences = section.rollout.prompts * section.rollout.samples
    sampled = sampled_sequences(recipe) * response
    drawing = rates.sampler_s(shape.parameters, sampled, engines)
    if any(function.name == REWARD_MODEL for function in recipe.reward.functions):
        drawing += rates.learner_s(shape.parameters, sequences * rl.longest, 1, 1)  # by one rank
    for brought in recipe.reward_models.values():
        drawing += rates.learner_s(parameters_of(brought), sequences * rl.longest, 1, 1)
    rows = min(section.validation.prompts, data.validation or section.validation.prompts)
    validations = section.iterations // section.validation.every + 1
    return RLSeconds(
        iterations=section.iterations,
        drawing=section.iterations * drawing,
        training=_learning_s(recipe, shape, sequences * rl.longest, rates),
        validation=validations * rates.sampler_s(shape.parameters, rows * response, engines),
        ahead=section.rollout.max_staleness > 0,
    )


def _learning_s(recipe: Recipe, shape: ModelShape, tokens: int, rates: Rates) -> float:
    """Seconds of all forward and backward passes over ``tokens`` an iteration that train.

    Each iteration: old log-probs, unless the update's forward pass gives them, and where there are
    any the reference's and the critic's values. Each epoch of policy and critic: three passes'
    worth, and one more of the policy where the update scores its own old log-probs.
    """
    section, ranks = recipe.rl, recipe.hardware.learner.ranks
    epochs, critic = section.update.epochs, section.critic is not None
    exact = section.algorithm.kl.estimator == "full"
    reference = section.algorithm.kl.uses_reference

    def seconds(passes: float, over: int) -> float:
        return rates.learner_s(shape.parameters, over, passes, ranks)

    scoring = int(not recipe.rl.update.fused)
    every = seconds(scoring + (1 + 3 * epochs if critic else 0), tokens)
    single = int(reference and not exact)  # a worker of one rank
    every += rates.learner_s(shape.parameters, tokens, single, 1)
    policy = (3 + recipe.scores_own_logprobs) * epochs
    update = seconds(policy + (epochs + 1 if reference and exact else 0), tokens)
    update += seconds(3, section.update.steps * ptx_sequences(recipe) * recipe.sft.max_tokens)
    return section.iterations * every + section.actor_iterations * update
