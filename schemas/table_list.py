"""What is known of each table, and SQL view, without the contracts in ``schemas/tables.py``,
whose import takes seconds: what it holds, and the version of a table's schema."""

import polars as pl

MESSAGE = pl.Struct({"role": pl.String, "content": pl.String})
MESSAGES = pl.List(MESSAGE)


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
    "own_logprobs": "log-probs that the update scored (rl.update.old_logprobs own or fused)",
    "metrics": "every number of every step of the stages that train: the truth of every curve",
    "spans": "when each part of an RL iteration was under way, and each engine",
    "eval_results": "figures of each evaluated checkpoint; those of runs are on the test split",
    "completions": "what evaluation drew, with the verdicts",
    "win_pairs": "pairs of answers that a judge compared (evaluate.win_rate)",
    "evolve_answers": "answers of evolving, by problem and round, and the independent samples",
    "evolve_verdicts": "what each verifier said of such an answer",
    "evolve_scores": "what these answers were worth, scored at the end",
    "preferences": "ranked responses that preference or the reward model trains and is tested on",
    "reference_logprobs": "what the reference of the stage preference gives each response",
    "preference_scores": "what the reward model gives each held-out response",
    "pair_accuracy": "share of held-out pairs that the reward model orders as their ranks do",
    "calibration": "how often the reward model is right when it claims a confidence",
    "diagnostics": "periods in which a check of the RL run failed",
    "run_stages": "what each flow run used or made, a row per stage",
    "restarts": "when a stage continued in new workers or with other ranks within its run, and why",
    "iterations": "which weights each RL iteration made from which",
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

# Raise a table's number when its columns or their meaning change: older files are then refused.
# Tables that are not named have 1.
VERSIONS: dict[str, int] = {
    "rollouts": 2,
    "baselines": 2,
    "rewards": 4,
    "baseline_rewards": 4,
    "validation_rewards": 4,
    "advantages": 4,
    "own_logprobs": 2,
    "completions": 3,
    "preferences": 2,
}
# Columns that a version added, which nothing needs: null in files of the version before, which are
# still read.
ADDED: dict[str, tuple[str, ...]] = {"advantages/v4": ("penalty",)}


def added_since(table: str, version: str) -> tuple[str, ...] | None:
    """Return the columns of ``table`` that files of ``version`` (name/vN) lack; None where such
    files are not read."""
    added: tuple[str, ...] = ()
    for number in range(VERSIONS.get(table, 1), 0, -1):
        if version == (current := f"{table}/v{number}"):
            return added
        if current not in ADDED:
            return None
        added += ADDED[current]
    return None


def schema_version(table: str) -> str:
    """Return ``name/vN`` of a table, as written in manifests and in the Parquet metadata."""
    return f"{table}/v{VERSIONS.get(table, 1)}"
