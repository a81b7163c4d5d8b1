"""Pandera contracts of every Parquet table that passes between stages (polars, eager).

``TABLES`` maps a table's name (its file is ``<name>.parquet``) to its contract: the constant of the
same name, here or in ``schemas/records.py``. Rows are keyed by ``uid`` (prompt) and
``trajectory_id`` (one sampled response). What tables hold as a whole, and the versions of their
schemas: ``schemas/table_list.py``.
"""

import pandera.polars as pa
import polars as pl

from schemas import records
from schemas.contract import (
    FINISH_REASONS,
    NO_SCORE,
    OUTCOMES,
    boolean,
    booleans,
    equal_lengths,
    finite,
    float32s,
    float64,
    float64s,
    int32,
    int32s,
    int64,
    int64s,
    messages,
    once,
    rows,
    string,
    table,
)
from schemas.outcomes import LEVELS, StopReason
from schemas.table_list import TABLES as NAMES

SPLITS = ["train", "validation", "test"]
TRAINED = SPLITS[:2]
STOP_REASONS = [reason.value for reason in StopReason]
_VERDICTS = (
    "JSON object: judge -> {question (sha256), answer, choice, run}; null where no judge was asked"
)
_ENDS = pl.col("turn_ends")

PROMPTS = table(
    rows(
        "prompts_are_not_empty",
        (pl.col("prompt").list.len() > 0) & (pl.col("prompt_ids").list.len() > 0),
    ),
    rows(
        "rule_rows_have_ground_truth",
        (pl.col("reward_style") != "rule") | pl.col("ground_truth").is_not_null(),
    ),
    uid=string("the prompt: hash of source, messages and ground truth", unique=True),
    split=string("train, validation or test", isin=SPLITS),
    subset=string("part of a split within a source, e.g. test_steps; else the split"),
    data_source=string("task, by verl's name, e.g. openai/gsm8k; reward functions see it"),
    prompt=messages("messages (role, content) up to the turn to be answered"),
    prompt_ids=int32s("token ids of prompt after the chat template, the answer's turn opened"),
    ability=string("verl's category, e.g. math; empty where the source has none"),
    reward_style=string(
        "verl's: rule (by ground truth), model, judge or code",
        isin=["rule", "model", "judge", "code"],
    ),
    ground_truth=string(
        "what rule rewards compare with; null only in the other styles", nullable=True
    ),
    extra_info=string("JSON object: all further columns of the source"),
)

DEMONSTRATIONS = table(
    equal_lengths("mask_covers_tokens", "token_ids", "loss_mask"),
    rows("some_token_carries_loss", pl.col("loss_mask").list.any()),
    uid=string("the example: hash of source and messages", unique=True),
    split=string("train, or validation, which is never trained on", isin=TRAINED),
    data_source=string("task, by verl's name"),
    messages=messages("messages (role, content) with the answers to learn"),
    token_ids=int32s("token ids after the chat template, up to the last EOS"),
    loss_mask=booleans(
        "per token: true where it carries loss, that is the assistant's, EOS included"
    ),
)

REJECTS = table(
    source=string("file, hub dataset or generator that the row came from"),
    row=int64("its number within the source, from 0", ge=0),
    reason=string("short name, e.g. over_length, duplicate, near_duplicate, contaminated, filter"),
    detail=string("what exactly was wrong, in words"),
    content=string("the row as JSON, cut to 2,000 characters"),
)

# One trajectory as sampled, before anything is learnt from it. Token in, token out.
ROLLOUTS = table(
    equal_lengths("tokens_masks_and_logprobs_align", "token_ids", "loss_mask", "sampler_logprobs"),
    rows(
        "the_prompt_is_masked",
        ~pl.col("loss_mask").list.head(pl.col("prompt_tokens")).list.any(),
    ),
    equal_lengths("turns_align", "turn_ends", "turn_rewards", "turn_versions", "valid_actions"),
    rows(
        "turns_end_within_the_episode",
        (_ENDS.list.first() >= pl.col("prompt_tokens"))
        & _ENDS.list.eval(pl.element().diff().fill_null(0) >= 0).list.all()
        & (_ENDS.list.last() <= pl.col("token_ids").list.len()),
    ),
    rows(
        "logprobs_are_finite_and_not_positive",
        pl.col("sampler_logprobs")
        .list.eval((pl.element() <= 0) & pl.element().is_finite())
        .list.all(),
    ),
    trajectory_id=string("the sampled response; unique within a run, not across runs", unique=True),
    uid=string("the prompt: prompts.uid; rows of one uid are a group"),
    sample=int32("number of the response among those to its prompt, from 0", ge=0),
    iteration=int32("RL iteration that sampled it, from 1", ge=0),
    token_ids=int32s(
        "ids of the whole episode: the prompt, then the policy's turns, stop tokens included, and"
        " what an environment answered between them",
    ),
    prompt_tokens=int32("how many of token_ids are the prompt", ge=1),
    loss_mask=booleans("per token: true where the policy sampled it"),
    sampler_logprobs=float32s(
        "per token, nats: the engine's log-prob at the sampling temperature; 0 where masked"
    ),
    response=string("text of the last turn, special tokens dropped"),
    finish_reason=string(
        "end of the last generation: stop (stop token), length (cut off), abort (engine gave up)",
        isin=FINISH_REASONS,
    ),
    stop_reason=string("end of the episode: done, length or abort", isin=STOP_REASONS),
    turn_ends=int32s("per turn: tokens of the episode up to and with the turn's last"),
    turn_rewards=float64s("per turn: the environment's reward; 0 without an environment"),
    turn_versions=int64s("per turn: weight_version that sampled it"),
    valid_actions=booleans("per turn: whether the environment could read it"),
    seed=int64("decides every token: the same seed and weights draw the same response"),
    weight_version=int64("version of the weights that sampled it; each update adds 1", ge=0),
    weight_digest=string("sha256 of those weights, proven by the engine"),
)

# ``score`` is null when it could not be computed: never a silent 0.
REWARDS = table(
    NO_SCORE,
    trajectory_id=string("the scored response: trajectory_id of its rollout", unique=True),
    outcome=string(
        "ok, wrong, no_answer, or without a score: timeout, error, aborted", isin=OUTCOMES
    ),
    score=float64(
        "offset + sum of weight x function (recipe section reward); null where unscored",
        nullable=True,
    ),
    correct=boolean(
        "verdict of the reward functions; null where none checks correctness", nullable=True
    ),
    counts=boolean("false where correct comes from a function of weight 0"),
    parts=string("JSON object: unweighted score by function"),
    detail=string("why there is no score, or what the function said"),
    failures=string("JSON object: functions of weight 0 that failed -> {outcome, detail}"),
    seconds=float64("wall clock of scoring, s", ge=0),
    verdicts=string(_VERDICTS, nullable=True),
)

VALIDATION_ANSWERS = table(
    trajectory_id=string("the prompt: prompts.uid", unique=True),
    response=string("the answer's text, special tokens dropped"),
    finish_reason=string(
        "stop (stop token), length (cut off) or abort (engine gave up)", isin=FINISH_REASONS
    ),
    num_tokens=int32("tokens sampled, stop token included", ge=0),
)

ADVANTAGES = table(
    equal_lengths("columns_align", "advantages", "old_logprobs"),
    rows(
        "numbers_are_finite",
        pl.all_horizontal(
            finite(name).fill_null(value=True) for name in ("advantages", "values", "returns")
        ),
    ),
    trajectory_id=string("the response: rollouts.trajectory_id", unique=True),
    advantages=float32s(
        "per token of rollouts.token_ids: what it is credited with; 0 where masked"
    ),
    old_logprobs=float32s(
        "per token, nats: log-prob under the policy before the update, as scored by the learner; 0"
        " where masked",
        nullable=True,
    ),
    ref_logprobs=float32s(
        "per token, nats: log-prob under the frozen reference; null without KL", nullable=True
    ),
    values=float32s(
        "per token: the critic's value before it; null without a critic or a score", nullable=True
    ),
    returns=float32s(
        "per token: the critic's target; null without a critic or a score", nullable=True
    ),
    positive=boolean("what auxiliary losses take for correct; null where unknown", nullable=True),
    penalty=float64(
        "what invalid actions took off its score (environment.invalid_action_penalty); null without"
        " an environment",
        nullable=True,
        ge=0,
    ),
)

EPISODES = table(
    trajectory_id=string("the episode: rollouts.trajectory_id", unique=True),
    turns=messages("messages (role, content) that followed the prompt"),
    failure=string("why the environment could not continue; null where it could", nullable=True),
)

# One row per trajectory that trained, and epoch; fused, also of the sample that did not train.
OWN_LOGPROBS = table(
    once("a_trajectory_stands_once_in_an_epoch", "trajectory_id", "epoch"),
    rows("logprobs_are_finite", finite("own_logprobs")),
    trajectory_id=string("the response: rollouts.trajectory_id"),
    epoch=int32("pass over the rollouts that trained on it, from 0", ge=0),
    own_logprobs=float32s(
        "per token, nats: log-prob under the policy before the update, in the update's own packing;"
        " 0 where masked",
    ),
)

# wandb is a view of it.
METRICS = table(
    stage=string("sft, preference, reward_model or rl"),
    step=int64("optimizer step, in rl iteration, from 1; 0 = before any", ge=0),
    name=string("metric, in verl's names where verl has it; timing_s/* are seconds"),
    value=float64(
        "the number, in the unit of its name; null where it is not finite", nullable=True
    ),
)

# A few rows an iteration, beside its metrics; those that end after it are with the next one's.
SPANS = table(
    iteration=int64(
        "RL iteration that it was for, from 1: the one trained, or whose rows were drawn", ge=1
    ),
    lane=string(
        "who was busy: loop, the run itself; ahead, what draws the rows of iterations to come"
        " (rl.rollout.max_staleness); engine 0, ..."
    ),
    what=string(
        "part as in timing_s/<part>; wait: for rows drawn ahead; step: the whole iteration; of an"
        " engine gen, from when it was asked for rows to its answer, or sync, loading weights"
    ),
    began_s=float64(
        "when it began, s after the process that recorded it began its first iteration", ge=0
    ),
    seconds=float64("how long it took, s; of very many short ones in a row with their gaps", ge=0),
)

EVAL_RESULTS = table(
    checkpoint=string("base, sft, preference or rl; model: of `rl-pipeline evaluate`"),
    data_source=string("task, by verl's name; all = every prompt alike"),
    subset=string("test split of the source; all = all of them"),
    metric=string("e.g. greedy/acc, sampled/pass@4; list: rlcore/evaluation/summary.py"),
    value=float64("the figure: a share from 0 to 1, a mean score, or a mean length in tokens"),
    ci_low=float64("lower end of its 95 % interval (Wilson, or a bootstrap over prompts)"),
    ci_high=float64("upper end of that interval"),
    num_prompts=int64("prompts that the figure is computed from", ge=1),
    num_samples=int64("completions that it is computed from", ge=1),
)

COMPLETIONS = table(
    checkpoint=string("base, sft, preference or rl; model: of `rl-pipeline evaluate`"),
    uid=string("the prompt: prompts.uid"),
    data_source=string("task, by verl's name"),
    subset=string("test split of the source"),
    mode=string(
        "greedy (temperature 0) or sampled (evaluate.temperature)", isin=["greedy", "sampled"]
    ),
    sample=int32("number of the completion among those of its prompt and mode, from 0", ge=0),
    prompt=string("text of the prompt's messages, a line break between them"),
    response=string("the completion's text, special tokens dropped"),
    ground_truth=string("prompts.ground_truth", nullable=True),
    outcome=string("as rewards.outcome", isin=OUTCOMES),
    score=float64("as rewards.score", nullable=True),
    answer=string(
        "the answer that a reward function extracted; null where none did", nullable=True
    ),
    finish_reason=string(
        "stop (stop token), length (cut off) or abort (engine gave up)", isin=FINISH_REASONS
    ),
    num_tokens=int32("tokens sampled, stop token included", ge=0),
    verdicts=string(_VERDICTS, nullable=True),
    turns=messages(
        "messages (role, content) that followed the prompt; empty without an environment"
    ),
    valid_actions=booleans("per turn: whether the environment could read it"),
)

EVOLVE_ANSWERS = table(
    uid=string("the problem: prompts.uid", unique=True),
    round=int32("number of the round, or of the independent sample, from 1", ge=1),
    prompt=string("what the policy was shown, as text"),
    memory=int32s("rounds whose solutions it was shown, the best first"),
    response=string("its last turn, as text"),
    turns=messages("what followed the prompt, in an environment; empty without one"),
    turn_rewards=float64s("the environment's reward of each turn"),
    answer=string("the answer in response; null where no attempt had one", nullable=True),
    attempts=int32("times that it was asked: 1 + evolve.format_retries at most", ge=1),
    finish_reason=string("stop, length or abort, of the last turn", isin=FINISH_REASONS),
    num_tokens=int32("tokens that it sampled in the last attempt, stop tokens included", ge=0),
    detail=string("why the environment could not continue in the last attempt; empty if it could"),
)

EVOLVE_VERDICTS = table(
    once("a_verifier_judges_an_answer_once", "uid", "verifier"),
    rows("what_cannot_be_read_rejects", pl.col("report").is_not_null() | (pl.col("verdict") == 0)),
    uid=string("the problem: prompts.uid"),
    round=int32("number of the round, from 1", ge=1),
    verifier=int32("number of the verifier, from 0", ge=0),
    verdict=int32(
        "1 = it accepts the answer, 0 = it rejects it, or could not be read", isin=[0, 1]
    ),
    report=string("what it says of the solution; null where it could not be read", nullable=True),
    attempts=int32("times that it was asked: 1 + evolve.format_retries at most", ge=1),
)

EVOLVE_SCORES = table(
    once("an_answer_stands_once", "uid", "mode", "round"),
    NO_SCORE,
    uid=string("the problem: prompts.uid"),
    data_source=string("task, by verl's name"),
    subset=string("part of that task"),
    mode=string(
        "round, or independent: a sample without memory and verifiers",
        isin=["round", "independent"],
    ),
    round=int32("number of the round, or of the sample, from 1", ge=1),
    answer=string("what the reward function extracted; null where it found none", nullable=True),
    outcome=string("ok, wrong, no_answer, timeout, error or aborted", isin=OUTCOMES),
    score=float64("reward of the answer; null where it could not be scored", nullable=True),
    correct=boolean("whether the answer is right; null where that was not checked", nullable=True),
    vote=int32(
        "1 where more than half of the verifiers accept; null without an answer or a vote",
        nullable=True,
        isin=[0, 1],
    ),
    is_chosen=boolean("whether the answer is the first of the memory after the last round"),
)

_WORTH = "what answer is worth against other where the judge read it {}: 1 won, 0.5 tie, 0 lost"
WIN_PAIRS = table(
    once("an_answer_is_compared_once", "checkpoint", "uid"),
    checkpoint=string("whose answer it is, as completions.checkpoint"),
    against=string("whose answer it is compared with: a checkpoint, or reference"),
    uid=string("the prompt: prompts.uid"),
    data_source=string("task, by verl's name"),
    subset=string("test split of the source"),
    prompt=string("text of the prompt's messages, a line break between them"),
    answer=string("the greedy answer; of an episode all that was said"),
    other=string("what it is compared with"),
    before=float64(_WORTH.format("first") + "; null without a verdict", nullable=True),
    after=float64(_WORTH.format("second") + "; null without a verdict", nullable=True),
    asked=boolean("false where both answers are equal, which are a tie that nobody read"),
    verdicts=string(_VERDICTS, nullable=True),
)

PREFERENCES = table(
    once("a_response_stands_once", "uid", "sample"),
    rows("responses_are_not_empty", pl.col("token_ids").list.len() > pl.col("prompt_tokens")),
    rows("a_prompt_has_one_split", pl.col("split").n_unique().over("uid") == 1),
    uid=string("the prompt: prompts.uid, or a hash of the prompt in the file"),
    split=string("train, or validation, which is never trained on", isin=TRAINED),
    data_source=string("task, by verl's name"),
    sample=int32("number of the response among those to its prompt, from 0", ge=0),
    token_ids=int32s("token ids of prompt and response"),
    prompt_tokens=int32("how many of token_ids are the prompt", ge=1),
    response=string("the response's text"),
    rank=int32("1 = best of its prompt; equal ranks are a tie", ge=1),
    level=string(
        "correct, wrong or malformed, by a verifier; null without a verdict",
        nullable=True,
        isin=LEVELS,
    ),
    verdicts=string(_VERDICTS, nullable=True),
)

REFERENCE_LOGPROBS = table(
    once("a_response_stands_once", "uid", "sample"),
    rows("logprobs_are_finite", finite("logprobs") & finite("other_logprobs")),
    uid=string("the prompt: preferences.uid"),
    sample=int32("the response: preferences.sample", ge=0),
    logprobs=float32s(
        "per token of the response, nats: log-prob under the policy that the stage begins with"
    ),
    other_logprobs=float32s(
        "the same of the response to another prompt that kto reads with this one's; else empty"
    ),
)

PREFERENCE_SCORES = table(
    rows("scores_are_finite", pl.col("score").is_finite()),
    uid=string("the prompt: preferences.uid"),
    sample=int32("the response: preferences.sample", ge=0),
    score=float64("the reward model's score; demonstrations average 0"),
)

# The interval resamples prompts, since the pairs of a prompt share responses.
PAIR_ACCURACY = table(
    level=string("difficulty of the pairs, e.g. correct_over_wrong, or all", unique=True),
    num_prompts=int64("prompts with such a pair", ge=1),
    num_pairs=int64("pairs, two responses of unequal rank to one prompt each", ge=1),
    accuracy=float64("share of pairs whose better response scores higher, 0 to 1", ge=0, le=1),
    ci_low=float64("lower end of its 95 % interval (bootstrap over prompts)", ge=0, le=1),
    ci_high=float64("upper end of that interval", ge=0, le=1),
)

# A row per [low, high) of claims.
CALIBRATION = table(
    low=float64(
        "claimed confidence from, sigmoid of the score difference, 0.5 to 1",
        unique=True,
        ge=0.5,
        lt=1,
    ),
    high=float64("claimed confidence up to", gt=0.5, le=1),
    num_pairs=int64("held-out pairs with such a claim; bins without pairs are left out", ge=1),
    claimed=float64("mean claim of these pairs, 0.5 to 1", ge=0.5, le=1),
    observed=float64("share of them that are ordered rightly, 0 to 1", ge=0, le=1),
)

DIAGNOSTICS = table(
    check=string("name of the check"),
    severity=string("warning, or fatal where it ended the run", isin=["warning", "fatal"]),
    began=int64("iteration at which it was reported; 0 = the recipe, before the first", ge=0),
    ended=int64("iteration at which it was over; null while it lasts", nullable=True, ge=1),
    value=float64(
        "what the check measured when it reported; null where it measures nothing", nullable=True
    ),
    message=string("what was wrong, with value and threshold"),
    remedy=string("what to change"),
)

BASELINES, BASELINE_REWARDS = ROLLOUTS, REWARDS
VALIDATION_REWARDS = REWARDS.update_column("trajectory_id", description="the prompt: prompts.uid")

_CONSTANTS = {**vars(records), **globals()}
TABLES: dict[str, pa.DataFrameSchema] = {name: _CONSTANTS[name.upper()] for name in NAMES}
