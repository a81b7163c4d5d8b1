"""The checks of policy and critic: entropy, KL, clipping, drift from the sampler, lengths of
answers, validation, value loss. Each is a threshold over metrics, with its remedy."""

from collections.abc import Callable
from statistics import median

from rlcore.diagnostics.measures import (
    ABORTED,
    BIGGER_GROUPS,
    CLIPPED_BY_NOISE,
    CLIPPED_FIRST,
    EMPTY,
    LONGER_RESPONSES,
    LOWER_LR,
    MASKED,
    MORE_CACHE,
    PERSISTENT,
    SAMPLE_SIZE,
    SCORE,
    START,
    TRUNCATED,
    VALIDATION,
    WINDOW,
    accuracy_noise,
    finite_critic_steps,
    finite_steps,
    has_critic,
    mostly_right,
    share_of_start,
    smooth,
    steps_per_update,
    validated,
)
from rlcore.diagnostics.types import Check, Stream


def _spike(name: str, *, floor: float) -> Callable[[Stream], float | None]:
    """|latest| over the median size of the ``WINDOW`` values before it, or over ``floor``."""

    def measure(stream: Stream) -> float | None:
        before = stream.history(name)[:-1][-WINDOW:]
        if len(before) < PERSISTENT:
            return None
        return abs(stream.now[name]) / max(floor, median(abs(value) for value in before))

    return measure


def _growth_without_gain(stream: Stream) -> float | None:
    """Length over its start, unless the score has risen with it (longer reasoning that helps)."""
    before, after = stream.start(SCORE, START), stream.recent(SCORE, START)
    if before is None or after is None:
        return None
    gained = after > before + 0.02 * max(1.0, abs(before))
    return 0.0 if gained else share_of_start("response_length/mean")(stream)


def _not_finite(learner: str) -> Callable[[Stream], float | None]:
    """Optimizer steps of "actor" or "critic" that were skipped, at least 1 with a NaN norm."""

    def measure(stream: Stream) -> float | None:
        norm = stream.now[f"{learner}/grad_norm"]
        return max(stream.now[f"{learner}/skipped_steps"], float(norm != norm))

    return measure


def _truncation_remedy(stream: Stream) -> str:
    """Name the options that are not on yet."""
    algorithm = stream.recipe.rl.algorithm
    others = {
        "rl.algorithm.overlong (soft punishment)": algorithm.overlong is None,
        "rl.algorithm.mask_truncated": not algorithm.mask_truncated,
    }
    names = [name for name, off in others.items() if off]
    return LONGER_RESPONSES + (f", or set {' or '.join(names)}" if names else "")


def _length_remedy(stream: Stream) -> str:
    shaped = stream.recipe.rl.algorithm.overlong is not None
    first = "raise rl.algorithm.overlong.factor" if shaped else "set rl.algorithm.overlong"
    return (
        f"{first}; a loss that favours length (aggregation seq-mean-token-mean with negative"
        " advantages) is cured by token-mean"
    )


# Share of responses cut off, above which shaping and masking, which tell them apart, cannot help.
NEVER_ENDS = 0.9
SAME_NUMERICS = (
    "use the same dtype and attention in both, set rl.algorithm.importance_correction, or raise the"
    " bound if the precision explains it"
)

MOSTLY_MASKED = 0.5  # share of tokens; more of them teach nothing than something
NEARER_SAMPLER = f"use the same dtype and attention in both, or {LOWER_LR} or rl.update.epochs"


def _weights_remedy(stream: Stream) -> str:
    """A weight of a whole response is a product, whose spread grows with its length."""
    section = "rl.algorithm.importance_correction"
    if stream.recipe.rl.algorithm.importance_correction.level == "sequence":
        return f"set {section}.level: token, or lower its cap; else {NEARER_SAMPLER}"
    return f"lower {section}.cap, or bring the sampler nearer to the policy: {NEARER_SAMPLER}"


def _drop(stream: Stream) -> float:
    return max(stream.history(VALIDATION)) - stream.now[VALIDATION]


POLICY_CHECKS = (
    Check(
        name="entropy_collapse",
        reads=("actor/entropy",),
        measure=share_of_start("actor/entropy"),
        threshold=0.1,
        below=True,
        patience=3,
        quiet=mostly_right,
        says="entropy has fallen to {value:.0%} of its start (now {now[actor/entropy]:.3g} nats)",
        remedy=(
            f"{LOWER_LR}, raise rl.algorithm.clip_high (clip-higher, DAPO) or"
            " rl.algorithm.entropy_coef"
        ),
    ),
    Check(
        name="entropy_explosion",
        reads=("actor/entropy",),
        measure=share_of_start("actor/entropy"),
        threshold=3.0,
        patience=3,
        says="entropy is {value:.1f} times its start (now {now[actor/entropy]:.3g} nats)",
        remedy=f"{LOWER_LR} or rl.algorithm.entropy_coef, or hold the policy with rl.algorithm.kl",
    ),
    Check(
        name="kl_spike",
        reads=("actor/ppo_kl",),
        measure=_spike("actor/ppo_kl", floor=0.01),
        threshold=10.0,
        says=(
            "one update moved the policy by {now[actor/ppo_kl]:.3g} nats per token, {value:.0f}"
            " times what is usual"
        ),
        remedy=(
            f"{LOWER_LR} or rl.update.epochs, or {BIGGER_GROUPS}; where rollouts are stale take"
            " rl.preset: gepo"
        ),
    ),
    Check(
        name="reference_kl_spike",
        reads=("actor/ref_kl",),
        measure=_spike("actor/ref_kl", floor=0.02),
        threshold=5.0,
        says=(
            "KL to the reference jumped to {now[actor/ref_kl]:.3g} nats per token, {value:.0f}"
            " times what is usual"
        ),
        remedy=(
            f"{LOWER_LR}, or raise rl.algorithm.kl.coef, with rl.algorithm.kl.where loss or reward"
            " (there with controller: adaptive)"
        ),
    ),
    Check(
        name="everything_clipped",
        # The later steps of a healthy GSPO run clip nine tokens in ten: the policy has moved that
        # far. A first step without an advantage has no such metric, and says nothing.
        reads=(CLIPPED_FIRST,),
        # Group ratios differ from 1 by design, before any weight has moved.
        threshold=lambda recipe: (
            0.9 if recipe.rl.algorithm.ratio_level == "group" else CLIPPED_BY_NOISE
        ),
        patience=2,
        says=(
            "{value:.0%} of the tokens are clipped and give no gradient before the update has moved"
            " the policy"
        ),
        remedy=(
            "the clip range is below the noise of the log-probs: set rl.update.old_logprobs: own or"
            " model.dtype: float32, or widen rl.algorithm.clip_low and clip_high"
        ),
    ),
    Check(
        name="ratio_never_moves",
        reads=("actor/ratio_mean", "actor/ratio_max"),
        measure=lambda stream: max(
            abs(stream.now[name] - 1) for name in ("actor/ratio_mean", "actor/ratio_max")
        ),
        threshold=1e-6,
        below=True,
        patience=PERSISTENT,
        applies=lambda recipe: (
            steps_per_update(recipe) > 1 and recipe.rl.algorithm.ratio_level != "group"
        ),
        quiet=mostly_right,
        says="after {lasted} iterations of several optimizer steps each, every ratio is exactly 1",
        remedy="the weights do not change: check rl.update.optimizer, its schedule, and the reward",
    ),
    Check(
        name="not_finite",
        reads=("actor/grad_norm", "actor/skipped_steps"),
        measure=_not_finite("actor"),
        threshold=1.0,
        says="{now[actor/skipped_steps]:.0f} optimizer steps had a gradient that is not finite",
        remedy=finite_steps,
    ),
    Check(
        name="sampler_drift",
        reads=("training/rollout_logprobs_gap_max",),
        threshold=lambda recipe: recipe.sampler_gap_bound.limit / 2,
        applies=lambda recipe: recipe.sampler_gap_bound.measure == "max",
        says=(
            "sampler and learner log-probs differ by {value:.2g} nats, over half of"
            " rl.max_logprob_gap, at which the run ends"
        ),
        remedy=SAME_NUMERICS,
    ),
    Check(
        name="sampler_drift_on_average",
        reads=("training/rollout_mult_prob_error", "training/rollout_logprobs_gap_max"),
        threshold=lambda recipe: 1 + (recipe.sampler_gap_bound.limit - 1) / 2,
        applies=lambda recipe: recipe.sampler_gap_bound.measure == "mult",
        says=(
            "exp(mean |gap|) of sampler and learner log-probs is {value:.3f} (largest gap"
            " {now[training/rollout_logprobs_gap_max]:.2g} nats), over half-way from 1 to"
            " rl.max_mult_prob_error, at which the run ends"
        ),
        remedy=SAME_NUMERICS,
    ),
    Check(
        name="low_effective_sample_size",
        reads=(SAMPLE_SIZE, MASKED),
        threshold=0.3,
        below=True,
        patience=3,
        quiet=lambda stream: stream.now[MASKED] >= MOSTLY_MASKED,
        says=(
            "the importance weights differ so much that a batch counts as {value:.0%} of its size:"
            " a few tokens or responses decide the step"
        ),
        remedy=_weights_remedy,
    ),
    Check(
        name="mostly_masked",
        reads=(MASKED,),
        threshold=MOSTLY_MASKED,
        patience=3,
        says=(
            "{value:.0%} of the tokens give no policy loss: the sampler is outside the bounds of"
            " rl.algorithm.importance_correction"
        ),
        remedy=(
            "widen low, cap or the bounds of reject, which the metrics rollout_corr/* help to set"
            " (where kept_length_ratio is below 1 the masks select short responses), or bring the"
            f" sampler nearer to the policy: {NEARER_SAMPLER}"
        ),
    ),
    Check(
        name="truncation",
        reads=(TRUNCATED,),
        threshold=0.3,
        patience=3,
        quiet=lambda stream: stream.now[TRUNCATED] >= NEVER_ENDS,
        says="{value:.0%} of the responses are cut off at rl.rollout.max_new_tokens",
        remedy=_truncation_remedy,
    ),
    Check(
        name="empty_answers",
        reads=(EMPTY,),
        threshold=0.9,
        says="{value:.0%} of the responses are empty: a stop token comes first",
        remedy=(
            "see that the chat template ends the prompt where an answer begins, and that"
            " model.path is a model of that template; or train on demonstrations first (sft)"
        ),
    ),
    Check(
        name="answers_never_end",
        reads=(TRUNCATED,),
        threshold=NEVER_ENDS,
        patience=3,
        says=(
            "{value:.0%} of the responses are cut off at rl.rollout.max_new_tokens, as if nothing"
            " ended them"
        ),
        remedy=(
            "read some: where they continue behind their end, add that token to model.stop_tokens"
            " or that text into rl.rollout.stop (`--dry-run` lists what ends an answer); else train"
            " on demonstrations that end, or raise rl.rollout.max_new_tokens"
        ),
    ),
    Check(
        name="length_collapse",
        reads=("response_length/mean",),
        measure=share_of_start("response_length/mean"),
        threshold=0.3,
        below=True,
        patience=3,
        quiet=mostly_right,
        says="responses have shrunk to {value:.0%} of their initial length",
        remedy="the reward favours short responses: read some, then fix the reward",
    ),
    Check(
        name="length_explosion",
        reads=("response_length/mean", SCORE),
        measure=_growth_without_gain,
        threshold=3.0,
        patience=3,
        says="responses are {value:.1f} times as long as at first and score no better",
        remedy=_length_remedy,
    ),
    Check(
        name="aborted_responses",
        reads=(ABORTED,),
        threshold=0.05,
        says="{value:.0%} of the responses were aborted by the engine",
        remedy=MORE_CACHE,
    ),
    Check(
        name="validation_drop",
        reads=(VALIDATION,),
        measure=_drop,
        threshold=lambda recipe: accuracy_noise(recipe.rl.validation.prompts, least=0.1),
        quiet=lambda stream: _drop(stream) < accuracy_noise(validated(stream), least=0.1),
        says="validation accuracy is {now[val/accuracy]:.3f}, {value:.3f} below its best",
        remedy=(
            f"{LOWER_LR} or let it decay (schedule.kind: linear), {BIGGER_GROUPS}; the best"
            " checkpoint is kept and exported"
        ),
    ),
)


def _explained_rise(stream: Stream) -> float | None:
    """Rise of the explained variance (mean of 5) since the first; 1 once it is plainly good."""
    explained = smooth(stream.history("critic/vf_explained_var"))
    critic = stream.recipe.rl.critic
    warmup = critic.warmup_iterations if critic else 0
    if len(explained) < WINDOW or stream.iteration < warmup + WINDOW:
        return None
    best = max(explained)
    return 1.0 if best >= 0.5 else best - explained[0]


def _value_loss_growth(stream: Stream) -> float | None:
    start = stream.start("critic/vf_loss", START)
    return stream.now["critic/vf_loss"] / start if start else None


CRITIC_CHECKS = (
    Check(
        name="critic_not_learning",
        reads=("critic/vf_explained_var",),
        measure=_explained_rise,
        threshold=0.02,
        below=True,
        applies=has_critic,
        says=(
            "the critic's explained variance has risen by {value:.3f} only (now"
            " {now[critic/vf_explained_var]:.2f})"
        ),
        remedy=(
            "raise rl.critic.optimizer.lr or rl.critic.warmup_iterations (50 at least), or"
            " start the critic from a reward model (rl.critic.init)"
        ),
    ),
    Check(
        name="value_loss_explosion",
        reads=("critic/vf_loss",),
        measure=_value_loss_growth,
        threshold=5.0,
        patience=3,
        applies=has_critic,
        says="the value loss is {value:.1f} times its start (now {now[critic/vf_loss]:.3g})",
        remedy="lower rl.critic.optimizer.lr, or set rl.critic.clip",
    ),
    Check(
        name="critic_not_finite",
        reads=("critic/grad_norm", "critic/skipped_steps"),
        measure=_not_finite("critic"),
        threshold=1.0,
        applies=has_critic,
        says="{now[critic/skipped_steps]:.0f} critic steps had a gradient that is not finite",
        remedy=finite_critic_steps,
    ),
)
