"""The checks of a recipe whose keys work against each other, and of rewards: dead, all alike, or
failing to be computed."""

from rlcore.diagnostics.measures import (
    ACCURACY,
    BIGGER_GROUPS,
    HOPELESS,
    PERSISTENT,
    SCORE,
    VERIFIER_CORRELATION,
    accuracy_noise,
    all_right,
    has_critic,
    mostly_right,
    smooth,
    steps_per_update,
)
from rlcore.diagnostics.types import Check, Stream
from schemas.recipe import Recipe

AGREEMENT = 10  # iterations over which the rank correlation of score and verdict is averaged
# Its least fall that counts. A batch with 10 wrong responses has a standard error of .18, the
# difference of two means of 10 such batches one of .08.
AGREEMENT_LOST = 0.25


def _critic_lr_share(stream: Stream) -> float | None:
    rl = stream.recipe.rl
    return rl.critic.optimizer.lr / rl.update.optimizer.lr if rl.critic else None


def _dapo_parts_off(recipe: Recipe) -> list[str]:
    """Return the keys of DAPO's four parts (arXiv 2503.14476 section 3) that ``recipe`` lacks."""
    algorithm = recipe.rl.algorithm
    parts = {
        "clip_high above clip_low": algorithm.clip_high > algorithm.clip_low,
        "dynamic_sampling": algorithm.dynamic_sampling is not None,
        "aggregation: token-mean": algorithm.aggregation == "token-mean",
        "overlong or mask_truncated": algorithm.overlong is not None or algorithm.mask_truncated,
    }
    return [f"rl.algorithm.{name}" for name, there in parts.items() if not there]


def _filters_after_kl(recipe: Recipe) -> bool:
    section, kl = recipe.rl.algorithm.dynamic_sampling, recipe.rl.algorithm.kl
    after = section is not None and section.metric == "final_score"
    return after and kl.where == "reward" and kl.uses_reference


RECIPE_CHECKS = (
    Check(
        name="critic_lr_below_actor_lr",
        measure=_critic_lr_share,
        threshold=1 - 1e-9,
        below=True,
        applies=has_critic,
        says="rl.critic.optimizer.lr is {value:.2g} of rl.update.optimizer.lr",
        remedy="the critic must keep up with the policy: set its lr to the actor's or above",
    ),
    Check(
        name="vapo_without_warmup",
        measure=lambda stream: (critic := stream.recipe.rl.critic) and critic.warmup_iterations,
        # VAPO warms that of a pretrained model up for 50 steps (arXiv 2504.05118 table 1).
        threshold=lambda recipe: 49 if recipe.model.path else 0,
        below=True,
        applies=lambda recipe: recipe.rl.preset == "vapo",
        says="rl.preset is 'vapo' and rl.critic.warmup_iterations is {value:.0f}",
        remedy="always warm the critic up: 50 iterations for a real model",
    ),
    Check(
        name="small_lr_from_scratch",
        measure=lambda stream: (
            stream.recipe.sft.optimizer.lr if stream.recipe.sft.enabled else None
        ),
        threshold=1e-4,
        below=True,
        applies=lambda recipe: recipe.model.from_scratch is not None,
        says="model.from_scratch learns nothing at sft.optimizer.lr = {value:.2g}",
        remedy="set about 1e-3, and 1e-4 for RL, or write `extends: quickstart`, which has both",
    ),
    Check(
        name="dapo_in_part",
        measure=lambda stream: len(_dapo_parts_off(stream.recipe)),
        threshold=1,
        applies=lambda recipe: recipe.rl.preset == "dapo" and bool(recipe.model.path),
        says="rl.preset is 'dapo' without {value:.0f} of its four parts",
        remedy=lambda stream: (
            "the results of DAPO are those of all four; set"
            f" {', '.join(_dapo_parts_off(stream.recipe))}, or take rl.preset: grpo"
        ),
    ),
    Check(
        name="sequence_ratio_of_one",
        measure=lambda stream: steps_per_update(stream.recipe),
        threshold=1,
        below=True,
        applies=lambda recipe: recipe.rl.algorithm.ratio_level in ("sequence", "sequence-token"),
        says="one optimizer step per batch: the sequence ratio is always exactly 1 and never clips",
        remedy="set rl.update.mini_batches to 2 or more",
    ),
    Check(
        name="kl_without_pull",
        measure=lambda stream: stream.recipe.rl.algorithm.kl.coef,
        threshold=0.0,
        applies=lambda recipe: (
            recipe.rl.algorithm.kl.where == "loss"
            and recipe.rl.algorithm.kl.estimator == "k1"
            and recipe.rl.algorithm.kl.uses_reference
        ),
        says=(
            "rl.algorithm.kl adds {value:g} x k1 to the loss, whose gradient does not depend on the"
            " reference and is 0 in expectation: nothing holds the policy"
        ),
        remedy=(
            "set rl.algorithm.kl.estimator to k2, or to k1+ (the value of k1, the gradient of k2),"
            " or rl.algorithm.kl.where to reward"
        ),
    ),
    Check(
        name="filter_sees_kl",
        measure=lambda stream: stream.recipe.rl.algorithm.kl.coef,
        threshold=0.0,
        applies=_filters_after_kl,
        says=(
            "rl.algorithm.dynamic_sampling.metric is 'final_score', which holds the KL taken from"
            " the reward, and no two answers have the same: groups of one score are kept, too"
        ),
        remedy="set rl.algorithm.dynamic_sampling.metric to score or accuracy",
    ),
)


def _accuracy_lost_to_score(stream: Stream) -> float:
    """How far accuracy (mean of 5 iterations) is below its peak while the score is above its value
    at that peak."""
    accuracy, score = smooth(stream.history(ACCURACY)), smooth(stream.history(SCORE))
    if len(accuracy) != len(score) or not accuracy:
        return 0.0
    peak = max(range(len(accuracy)), key=accuracy.__getitem__)
    return accuracy[peak] - accuracy[-1] if score[-1] > score[peak] else 0.0


def _agreement_lost(stream: Stream) -> float:
    """How far the rank correlation of score and verdict (mean of ``AGREEMENT`` iterations) is below
    that of the first ones; 0 where this iteration has none."""
    steps = stream.steps(VERIFIER_CORRELATION)
    if not steps or steps[-1] != stream.iteration:
        return 0.0
    start = stream.start(VERIFIER_CORRELATION, AGREEMENT)
    recent = stream.recent(VERIFIER_CORRELATION, AGREEMENT)
    return 0.0 if start is None or recent is None else start - recent


def _accuracy_bound(recipe: Recipe) -> float:
    # Three standard errors: the peak is the best of many, so noise alone is often two below it.
    return accuracy_noise(5 * recipe.rl.rollout.prompts, least=0.05)


def _truth_lost(stream: Stream) -> float:
    """The larger of two losses, each as a multiple of the least that is no noise."""
    accuracy = _accuracy_lost_to_score(stream) / _accuracy_bound(stream.recipe)
    return max(accuracy, _agreement_lost(stream) / AGREEMENT_LOST)


def _hacking_says(stream: Stream) -> str:
    accuracy, agreement = _accuracy_lost_to_score(stream), _agreement_lost(stream)
    if agreement / AGREEMENT_LOST > accuracy / _accuracy_bound(stream.recipe):
        start = stream.start(VERIFIER_CORRELATION, AGREEMENT) or 0.0
        lost = (
            "reward and verifier disagree more and more: the rank correlation of score and"
            f" correctness was {start:.2f} in the first {AGREEMENT} iterations and is"
            f" {start - agreement:.2f} in the last {AGREEMENT}"
        )
    else:
        lost = f"true accuracy is {accuracy:.2f} below its best while the score still rises"
    return (
        f"{lost}, {{value:.1f}} times what noise explains: the policy learns what the reward likes,"
        " not what is right"
    )


REWARD_CHECKS = (
    Check(
        name="reward_dead",
        reads=("critic/score/max", "critic/score/min", SCORE),
        measure=lambda stream: stream.now["critic/score/max"] - stream.now["critic/score/min"],
        threshold=1e-9,
        below=True,
        patience=PERSISTENT,
        fatal_after=HOPELESS,
        quiet=all_right,
        says="every response scores {now[critic/score/mean]:.4g}: no answer is better than another",
        remedy=(
            "read responses (`rl-pipeline sql 'select response, outcome, detail from trajectories"
            " limit 5'`), then fix the reward, or give prompts that the policy sometimes solves"
        ),
    ),
    Check(
        name="everything_right",
        reads=("critic/score/max", "critic/score/min"),
        measure=lambda stream: float(all_right(stream)),
        threshold=1.0,
        patience=PERSISTENT,
        says="every response has been right, or of the best score, for {lasted} iterations",
        remedy=(
            "nothing is left to learn: set rl.validation.stop_at or take harder prompts; if it"
            " comes too early, the reward accepts wrong answers"
        ),
    ),
    Check(
        name="reward_errors",
        reads=("reward/error_fraction",),
        threshold=lambda recipe: max(recipe.reward.max_error_fraction / 2, 1e-9),
        says="reward code, judge or engine failed on {value:.1%} of the rows, half of what ends"
        " the run",
        remedy="see outcome and detail in the table rewards and correct what failed",
    ),
    Check(
        name="reward_timeouts",
        reads=("reward/timeout_fraction",),
        threshold=lambda recipe: max(recipe.reward.max_timeout_fraction / 2, 1e-9),
        says="the clock ended the scoring of {value:.1%} of the rows, half of what ends the run",
        remedy=(
            "raise reward.timeout_s or make the reward function faster: another machine scores"
            " other rows"
        ),
    ),
    Check(
        name="judge_failures",
        reads=("reward/judge_failed_fraction",),
        threshold=lambda recipe: max(recipe.reward.max_error_fraction, 1e-9),
        patience=3,
        says="a reward function of weight 0 fails on {value:.1%} of the rows; what is reported of"
        " it rests on the others",
        remedy="see failures in the table rewards and correct the function, or leave it out",
    ),
    Check(
        name="no_answers",
        reads=("reward/no_answer_fraction",),
        threshold=0.5,
        patience=PERSISTENT,
        says="the reward finds no answer in {value:.0%} of the responses",
        remedy=(
            "make prompt, demonstrations and reward agree on the form of an answer, and let"
            " responses end (rl.rollout.max_new_tokens)"
        ),
    ),
    Check(
        name="reward_hacking",
        reads=(SCORE, ACCURACY),
        measure=_truth_lost,
        threshold=1.0,
        patience=3,
        says=_hacking_says,
        remedy=(
            "read the responses with high scores and wrong answers in the table trajectories, and"
            " correct the reward; or end earlier (rl.iterations), raise rl.algorithm.kl.coef, mix a"
            " verifier into reward.functions, or train the reward model on newer samples"
        ),
    ),
    Check(
        name="constant_groups",
        reads=("critic/zero_std_group_fraction",),
        threshold=0.9,
        patience=PERSISTENT,
        applies=lambda recipe: (  # advantages compare the samples of a prompt
            recipe.rl.algorithm.traits.group and recipe.rl.rollout.samples > 1
        ),
        quiet=mostly_right,
        says="{value:.0%} of the groups have one score only and teach nothing",
        remedy=f"{BIGGER_GROUPS}, take prompts of middling difficulty, or a reward of finer steps",
    ),
    Check(
        name="filtered_ratio",
        reads=("train/filtered_ratio",),
        threshold=0.5,
        applies=lambda recipe: recipe.rl.algorithm.dynamic_sampling is not None,
        quiet=mostly_right,
        says="dynamic sampling filters out {value:.0%} of the prompts, not below {threshold:.0%}",
        remedy=f"{BIGGER_GROUPS}, or take prompts that are neither solved nor hopeless",
    ),
)
