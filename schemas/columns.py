"""What each table and each of its columns holds: for readers, and as comments in SQL.

Texts only, and apart from the contracts in ``schemas/tables.py``: a better sentence here must not
make stages run again (``NEUTRAL`` in ``rlcore/store/fingerprint.py``).
"""

TABLES: dict[str, str] = {
    "prompts": "prompts to learn or be evaluated on; written by prepare_data",
    "demonstrations": "examples that SFT trains on; written by prepare_data",
    "rejects": "input rows that prepare_data dropped, and why; a row may have several reasons",
    "rollouts": "trajectories as the policy sampled them, of every generation round of RL",
    "rewards": "how each rollout was scored",
    "baselines": "greedy answers of the policy to the same prompts, for ReMax",
    "baseline_rewards": "how each greedy answer was scored",
    "validation_rewards": "how each greedy answer of a validation during RL was scored",
    "validation_answers": "these answers",
    "advantages": "what the update learnt from, per token",
    "episodes": "what was said in each episode of an environment",
    "own_logprobs": "what ratios were measured against where rl.update.old_logprobs is own",
    "metrics": "every number of every step of sft, reward_model and rl: the truth of every curve",
    "eval_results": "figures of each evaluated checkpoint; those of runs are on the test split",
    "completions": "what evaluation drew, with the verdicts",
    "evolve_answers": "answers of evolving, by problem and round, and the independent samples",
    "evolve_verdicts": "what each verifier said of such an answer",
    "evolve_scores": "what these answers were worth, scored at the end",
    "preferences": "ranked responses that the reward model is trained and tested on",
    "preference_scores": "what the reward model gives each held-out response",
    "pair_accuracy": "share of held-out pairs that the reward model orders as their ranks do",
    "calibration": "how often the reward model is right when it claims a confidence",
    "diagnostics": "periods in which a check of the RL run failed",
    "run_stages": "what each flow run used or made, a row per stage",
    "iterations": "which weights each RL iteration turned into which",
    "weights": "the weights that each RL iteration ended with, a row per tensor",
    "inputs": "files and hub datasets that were read from outside the store",
    "champions": "which export is, or was, the champion of a recipe, and why",
    "decisions": "what the gate of retraining came to, a row per set of test prompts",
}
# SQL views that are no tables: made from all manifests, or joined from tables.
VIEWS: dict[str, str] = {
    "artifacts": "a row per complete artifact of the store, from its manifest",
    "lineage": "a row per parent of an artifact",
    "trajectories": "a row per trajectory: rollout, episode, reward, advantage, own_logprobs",
    "runs": "a row per flow run: recipe, seed, how far it came, accuracy, keys of what it made",
}

_ROLLOUTS = {
    "trajectory_id": "the sampled response; unique within a run, not across runs",
    "uid": "the prompt: prompts.uid; rows of one uid are a group",
    "sample": "number of the response among those to its prompt, from 0",
    "iteration": "RL iteration that sampled it, from 1",
    "token_ids": "ids of the whole episode: the prompt, then the policy's turns, stop tokens"
    " included, and what an environment answered between them",
    "prompt_tokens": "how many of token_ids are the prompt",
    "loss_mask": "per token: true where the policy sampled it",
    "sampler_logprobs": "per token, nats: the engine's log-prob at the sampling temperature; 0"
    " where masked",
    "response": "text of the last turn, special tokens dropped",
    "finish_reason": "end of the last generation: stop (stop token), length (cut off), abort"
    " (engine gave up)",
    "stop_reason": "end of the episode: done, length or abort",
    "turn_ends": "per turn: tokens of the episode up to and with the turn's last",
    "turn_rewards": "per turn: the environment's reward; 0 without an environment",
    "turn_versions": "per turn: weight_version that sampled it",
    "valid_actions": "per turn: whether the environment could read it",
    "seed": "decides every token: the same seed and weights draw the same response",
    "weight_version": "version of the weights that sampled it; each update adds 1",
    "weight_digest": "sha256 of those weights, proven by the engine",
}
_VERDICTS = (
    "JSON object: judge -> {question (sha256), answer, choice, run}; null where no judge was asked"
)
_REWARDS = {
    "trajectory_id": "the scored response: trajectory_id of its rollout",
    "outcome": "ok, wrong, no_answer, or without a score: timeout, error, aborted",
    "score": "offset + sum of weight x function (recipe section reward); null where unscored",
    "correct": "verdict of the reward functions; null where none checks correctness",
    "counts": "false where correct comes from a function of weight 0",
    "parts": "JSON object: unweighted score by function",
    "detail": "why there is no score, or what the function said",
    "failures": "JSON object: functions of weight 0 that failed -> {outcome, detail}",
    "seconds": "wall clock of scoring, s",
    "verdicts": _VERDICTS,
}

COLUMNS: dict[str, dict[str, str]] = {
    "prompts": {
        "uid": "the prompt: hash of source, messages and ground truth",
        "split": "train, validation or test",
        "subset": "part of a split within a source, e.g. test_steps; else the split",
        "data_source": "task, by verl's name, e.g. openai/gsm8k; reward functions see it",
        "prompt": "messages (role, content) up to the turn to be answered",
        "prompt_ids": "token ids of prompt after the chat template, the answer's turn opened",
        "ability": "verl's category, e.g. math; empty where the source has none",
        "reward_style": "verl's: rule (by ground truth), model, judge or code",
        "ground_truth": "what rule rewards compare with; null only in the other styles",
        "extra_info": "JSON object: all further columns of the source",
    },
    "demonstrations": {
        "uid": "the example: hash of source and messages",
        "split": "train, or validation, which is never trained on",
        "data_source": "task, by verl's name",
        "messages": "messages (role, content) with the answers to learn",
        "token_ids": "token ids after the chat template, up to the last EOS",
        "loss_mask": "per token: true where it carries loss, that is the assistant's, EOS included",
    },
    "rejects": {
        "source": "file, hub dataset or generator that the row came from",
        "row": "its number within the source, from 0",
        "reason": "short name, e.g. over_length, duplicate, near_duplicate, contaminated, filter",
        "detail": "what exactly was wrong, in words",
        "content": "the row as JSON, cut to 2,000 characters",
    },
    "rollouts": _ROLLOUTS,
    "rewards": _REWARDS,
    "baselines": _ROLLOUTS,
    "baseline_rewards": _REWARDS,
    "validation_rewards": {**_REWARDS, "trajectory_id": "the prompt: prompts.uid"},
    "validation_answers": {
        "trajectory_id": "the prompt: prompts.uid",
        "response": "the answer's text, special tokens dropped",
        "finish_reason": "stop (stop token), length (cut off) or abort (engine gave up)",
        "num_tokens": "tokens sampled, stop token included",
    },
    "advantages": {
        "trajectory_id": "the response: rollouts.trajectory_id",
        "advantages": "per token of rollouts.token_ids: what it is credited with; 0 where masked",
        "old_logprobs": "per token, nats: log-prob under the policy before the update, as scored"
        " by the learner; 0 where masked",
        "ref_logprobs": "per token, nats: log-prob under the frozen reference; null without KL",
        "values": "per token: the critic's value before it; null without a critic or a score",
        "returns": "per token: the critic's target; null without a critic or a score",
        "positive": "what auxiliary losses take for correct; null where unknown",
    },
    "episodes": {
        "trajectory_id": "the episode: rollouts.trajectory_id",
        "turns": "messages (role, content) that followed the prompt",
        "failure": "why the environment could not go on; null where it could",
    },
    "own_logprobs": {
        "trajectory_id": "the response: rollouts.trajectory_id",
        "epoch": "pass over the rollouts that trained on it, from 0",
        "own_logprobs": "per token, nats: log-prob under the policy before the update, in the"
        " update's own packing; 0 where masked",
    },
    "metrics": {
        "stage": "sft, reward_model or rl",
        "step": "optimizer step (sft, reward_model) or iteration (rl), from 1; 0 = before any",
        "name": "metric, in verl's names where verl has it; timing_s/* are seconds",
        "value": "the number, in the unit of its name; null where it is not finite",
    },
    "eval_results": {
        "checkpoint": "base, sft or rl; model: of `rl-pipeline evaluate`",
        "data_source": "task, by verl's name; all = every prompt alike",
        "subset": "test split of the source; all = all of them",
        "metric": "e.g. greedy/acc, sampled/pass@4; list: rlcore/evaluation/summary.py",
        "value": "the figure: a share from 0 to 1, a mean score, or a mean length in tokens",
        "ci_low": "lower end of its 95 % interval (Wilson, or a bootstrap over prompts)",
        "ci_high": "upper end of that interval",
        "num_prompts": "prompts that the figure is computed from",
        "num_samples": "completions that it is computed from",
    },
    "completions": {
        "checkpoint": "base, sft or rl; model: of `rl-pipeline evaluate`",
        "uid": "the prompt: prompts.uid",
        "data_source": "task, by verl's name",
        "subset": "test split of the source",
        "mode": "greedy (temperature 0) or sampled (evaluate.temperature)",
        "sample": "number of the completion among those of its prompt and mode, from 0",
        "prompt": "text of the prompt's messages, a line break between them",
        "response": "the completion's text, special tokens dropped",
        "ground_truth": "prompts.ground_truth",
        "outcome": "as rewards.outcome",
        "score": "as rewards.score",
        "answer": "the answer that a reward function extracted; null where none did",
        "finish_reason": "stop (stop token), length (cut off) or abort (engine gave up)",
        "num_tokens": "tokens sampled, stop token included",
        "verdicts": _VERDICTS,
        "turns": "messages (role, content) that followed the prompt; empty without an environment",
        "valid_actions": "per turn: whether the environment could read it",
    },
    "evolve_answers": {
        "uid": "the problem: prompts.uid",
        "round": "number of the round, or of the independent sample, from 1",
        "prompt": "what the policy was shown, as text",
        "memory": "rounds whose solutions it was shown, the best first",
        "response": "its last turn, as text",
        "turns": "what followed the prompt, in an environment; empty without one",
        "turn_rewards": "the environment's reward of each turn",
        "answer": "the answer in response; null where no attempt had one",
        "attempts": "times that it was asked: 1 + evolve.format_retries at most",
        "finish_reason": "stop, length or abort, of the last turn",
        "num_tokens": "tokens that it sampled in the last attempt, stop tokens included",
        "detail": "why the environment could not go on in the last attempt; empty where it could",
    },
    "evolve_verdicts": {
        "uid": "the problem: prompts.uid",
        "round": "number of the round, from 1",
        "verifier": "number of the verifier, from 0",
        "verdict": "1 = it accepts the answer, 0 = it rejects it, or could not be read",
        "report": "what it says of the solution; null where it could not be read",
        "attempts": "times that it was asked: 1 + evolve.format_retries at most",
    },
    "evolve_scores": {
        "uid": "the problem: prompts.uid",
        "data_source": "task, by verl's name",
        "subset": "part of that task",
        "mode": "round, or independent: a sample without memory and verifiers",
        "round": "number of the round, or of the sample, from 1",
        "answer": "what the reward function extracted; null where it found none",
        "outcome": "ok, wrong, no_answer, timeout, error or aborted",
        "score": "reward of the answer; null where it could not be scored",
        "correct": "whether the answer is right; null where that was not checked",
        "vote": "1 where more than half of the verifiers accept; null without an answer or a vote",
        "is_chosen": "whether the answer is the first of the memory after the last round",
    },
    "preferences": {
        "uid": "the prompt: prompts.uid, or a hash of the prompt in the file",
        "split": "train, or validation, which is never trained on",
        "data_source": "task, by verl's name",
        "sample": "number of the response among those to its prompt, from 0",
        "token_ids": "token ids of prompt and response",
        "prompt_tokens": "how many of token_ids are the prompt",
        "response": "the response's text",
        "rank": "1 = best of its prompt; equal ranks are a tie",
        "level": "correct, wrong or malformed, by a verifier; null without a verdict",
        "verdicts": _VERDICTS,
    },
    "preference_scores": {
        "uid": "the prompt: preferences.uid",
        "sample": "the response: preferences.sample",
        "score": "the reward model's score; demonstrations average 0",
    },
    "pair_accuracy": {
        "level": "difficulty of the pairs, e.g. correct_over_wrong, or all",
        "num_prompts": "prompts with such a pair",
        "num_pairs": "pairs, two responses of unequal rank to one prompt each",
        "accuracy": "share of pairs whose better response scores higher, 0 to 1",
        "ci_low": "lower end of its 95 % interval (bootstrap over prompts)",
        "ci_high": "upper end of that interval",
    },
    "calibration": {
        "low": "claimed confidence from, sigmoid of the score difference, 0.5 to 1",
        "high": "claimed confidence up to",
        "num_pairs": "held-out pairs with such a claim; bins without pairs are left out",
        "claimed": "mean claim of these pairs, 0.5 to 1",
        "observed": "share of them that are ordered rightly, 0 to 1",
    },
    "diagnostics": {
        "check": "name of the check",
        "severity": "warning, or fatal where it ended the run",
        "began": "iteration at which it was reported; 0 = the recipe, before the first",
        "ended": "iteration at which it was over; null while it lasts",
        "value": "what the check measured when it reported; null where it measures nothing",
        "message": "what was wrong, with value and threshold",
        "remedy": "what to change",
    },
    "run_stages": {
        "flow_run_id": "the run: id of its Prefect flow run",
        "run": "the run's folder below runs/",
        "recipe": "name of the recipe",
        "recipe_digest": "sha256 of the resolved recipe: artifacts.recipe_digest",
        "seed": "seed of the recipe",
        "overrides": "JSON object: dotted keys that the run was given, and their values",
        "stage": "the stage",
        "result_kind": "kind of the artifact that the stage makes: artifacts.kind",
        "result_key": "its key: artifacts.key",
        "records_key": "key of its checkpoints, metrics, rollouts and other records",
        "sha256": "digest of the result; null while the stage runs, and where it failed",
        "cached": "whether the result came from the store; null without a result",
        "began": "when the run came to the stage, ISO 8601, UTC",
        "seconds": "duration of the stage in this run, s; null without a result",
    },
    "iterations": {
        "iteration": "RL iteration, from 1; 0 is what RL began with",
        "version": "version of the weights after it",
        "digest_before": "sha256 of the weights that it sampled with",
        "digest_after": "sha256 of the weights that it ended with",
        "cursor": "prompts that were drawn from the stream up to its end",
    },
    "weights": {
        "tensor": "its name in the Hugging Face model",
        "digest": "sha256 over its name, dtype, shape and bytes",
    },
    "inputs": {
        "source": "who reads it, e.g. data.sources[0] train.jsonl, or model",
        "url": "its path, URL or hub name",
        "digest": "sha256 of the file, or commit of the hub dataset",
    },
    "champions": {
        "name": "the recipe whose champion it is",
        "number": "from 1; the highest is the champion",
        "cause": "first (there was none before), promoted (by the gate), by hand, or rolled back",
        "export_key": "key of its artifact of kind export",
        "export_sha256": "content digest of that artifact",
        "decision_key": "key of its artifact of kind decisions; null without a gate",
        "restored": "number of the entry that was rolled back to; null otherwise",
        "by": "id of the flow run that made the entry; empty where a command did",
        "made": "when the entry was made, ISO 8601, UTC",
    },
    "decisions": {
        "name": "the recipe whose champion was to be replaced",
        "verdict": "first, promoted, worse or uncertain; the last two hold the candidate",
        "prompts_digest": "sha256 over the uids of all test prompts: of their content",
        "look": "how often, with this time, these prompts have decided for this name",
        "alpha": "share that the intervals leave out: 0.05, halved by each look after the first",
        "champion": "number of the champion that it was compared with; 0 = there was none",
        "candidate": "key of the candidate's artifact of kind export",
        "inputs_digest": "sha256 over what was read from outside the store to make it",
        "prompt_set": "set of test prompts; null where there was no champion",
        "metric": "what was compared: retrain.metric of the recipe",
        "bound": "what the whole interval must exceed: 0, or -margin on a guard",
        "champion_mean": "mean of the metric over the set's prompts",
        "candidate_mean": "alike",
        "gain": "candidate_mean - champion_mean",
        "low": "lower end of the gain's interval",
        "high": "upper end of it",
        "prompts": "prompts of the set that both have a figure of",
        "needed": "prompts that would decide, were gain and spread as observed; null where it is"
        " decided, or no number would",
        "made": "when it was decided, ISO 8601, UTC",
    },
}

# In front of the columns of every table, in SQL.
HOLDER: dict[str, str] = {
    "kind": "kind of the artifact that holds the row",
    "key": "key of that artifact within its kind",
    "records_key": "first part of key, by which stages name all that they record: the key of"
    " run_stages and of runs that says which runs the row belongs to",
}
_NAMED = {
    "kind": "what it is: base_model, dataset, policy, rollouts, rewards, metrics, ...",
    "key": "its content key within the kind",
    "sha256": "content digest over all its files",
}
VIEW_COLUMNS: dict[str, dict[str, str]] = {
    "artifacts": {
        **_NAMED,
        "recipe_digest": "sha256 of the recipe of the run that wrote it",
        "code_fingerprint": "sha256 of the code that its content depends on",
        "producer": "id of the flow run that wrote it; empty outside of one",
        "created_at": "when it was complete, ISO 8601, UTC",
        "bytes": "size of all its files, bytes",
        "rows": "JSON object: rows by table",
        "metadata": "JSON object: what else the stage recorded",
    },
    "lineage": {
        **_NAMED,
        "role": "what the parent was used as, e.g. dataset, policy",
        "parent_kind": "kind of the parent",
        "parent_key": "key of the parent",
        "parent_sha256": "content digest that the parent had",
    },
    "trajectories": {
        **COLUMNS["own_logprobs"],
        **COLUMNS["episodes"],
        **COLUMNS["advantages"],
        **_REWARDS,
        **HOLDER,
        **_ROLLOUTS,
    },
}
del VIEW_COLUMNS["trajectories"]["epoch"]
VIEW_COLUMNS["runs"] = {
    "flow_run_id": "the run: id of its Prefect flow run",
    "run": "the run's folder below runs/",
    "recipe": "name of the recipe",
    "recipe_digest": "sha256 of the resolved recipe: artifacts.recipe_digest",
    "seed": "seed of the recipe",
    "overrides": "JSON object: dotted keys that the run was given, and their values",
    "began": "when the run came to its first stage, ISO 8601, UTC",
    "seconds": "duration of its stages that have ended, s",
    "state": "completed; or unfinished: it goes on, failed, or was killed",
    "stage": "the last stage that it came to",
    "iterations": "last RL iteration with metrics; null before the first",
    "planned": "RL iterations that it was to have; where another version wrote its recipe, the last"
    " one with metrics",
    "accuracy_base": "greedy accuracy of the base model, test split; null before the evaluation",
    "accuracy_sft": "greedy accuracy after SFT, alike",
    "accuracy_rl": "greedy accuracy after RL, alike",
    "records_key": "key of what its RL recorded: records_key of rollouts, rewards, metrics, ...;"
    " runs that found the same RL in the store share it, and so does a longer run that went on"
    " there: rows of iterations up to planned are this run's",
    "dataset_key": "key of its artifact of kind dataset; null where the stage has not ended",
    "policy_key": "key of its artifact of kind policy, alike",
    "evaluation_key": "key of its artifact of kind evaluation, alike",
    "export_key": "key of its artifact of kind export, alike",
}


def column_descriptions(table: str) -> dict[str, str]:
    """Return what each column of an SQL view holds: of a table, with what says which artifact holds
    the row in front, or of a view that is no table."""
    return VIEW_COLUMNS[table] if table in VIEW_COLUMNS else {**holder(table), **COLUMNS[table]}


def holder(table: str) -> dict[str, str]:
    """Return the columns in front of a table's own; ``records_key`` of run_stages is its own."""
    return {name: text for name, text in HOLDER.items() if name not in COLUMNS[table]}
