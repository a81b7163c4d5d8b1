"""What each column of an SQL view over the store holds.

Of tables the contracts say it (``schemas/tables.py``); here is what views add to them.
"""

from rlcore.store.tables import column_texts

# In front of the columns of every table, in SQL.
HOLDER: dict[str, str] = {
    "kind": "kind of the artifact that holds the row",
    "key": "key of that artifact within its kind",
    "records_key": "first part of key, by which stages name all that they record: the key of"
    " run_stages and of runs that says which runs the row belongs to",
}
JOINED = ("rollouts", "episodes", "rewards", "advantages", "own_logprobs")  # as trajectories
_NAMED = {
    "kind": "what it is: base_model, dataset, policy, rollouts, rewards, metrics, ...",
    "key": "its content key within the kind",
    "sha256": "content digest over all its files",
}
_ARTIFACTS = {
    **_NAMED,
    "recipe_digest": "sha256 of the recipe of the run that wrote it",
    "code_fingerprint": "sha256 of what its key holds of code: versions, a user's functions",
    "producer": "id of the flow run that wrote it; empty outside of one",
    "created_at": "when it was complete, ISO 8601, UTC",
    "bytes": "size of all its files, bytes",
    "rows": "JSON object: rows by table",
    "metadata": "JSON object: what else the stage recorded",
}
_LINEAGE = {
    **_NAMED,
    "role": "what the parent was used as, e.g. dataset, policy",
    "parent_kind": "kind of the parent",
    "parent_key": "key of the parent",
    "parent_sha256": "content digest that the parent had",
}
# Beside the columns that are as in run_stages.
_RUNS = {
    "began": "when the run came to its first stage, ISO 8601, UTC",
    "seconds": "duration of its stages that have ended, s",
    "state": "completed; or unfinished: it is under way, failed, or was killed",
    "stage": "the last stage that it came to",
    "iterations": "last RL iteration with metrics; null before the first",
    "planned": "RL iterations that it was to have; where another version wrote its recipe, the last"
    " one with metrics",
    "accuracy_base": "greedy accuracy of the base model, test split; null before the evaluation",
    "accuracy_sft": "greedy accuracy after SFT, alike",
    "accuracy_rl": "greedy accuracy after RL, alike",
    "records_key": "key of what its RL recorded: records_key of rollouts, rewards, metrics, ...;"
    " runs that found the same RL in the store share it, and so does a longer run that continued"
    " there: rows of iterations up to planned are this run's",
    "dataset_key": "key of its artifact of kind dataset; null where the stage has not ended",
    "policy_key": "key of its artifact of kind policy, alike",
    "evaluation_key": "key of its artifact of kind evaluation, alike",
    "export_key": "key of its artifact of kind export, alike",
}
_OF_RUN_STAGES = ("flow_run_id", "run", "recipe", "recipe_digest", "seed", "overrides")


def column_descriptions(view: str) -> dict[str, str]:
    """Return what each column of an SQL view holds: of a table, with what says which artifact holds
    the row in front, or of a view that is no table."""
    if view == "artifacts":
        return _ARTIFACTS
    if view == "lineage":
        return _LINEAGE
    if view == "runs":
        stages = column_texts("run_stages")
        return {name: stages[name] for name in _OF_RUN_STAGES} | _RUNS
    if view == "trajectories":
        found = dict(HOLDER)
        for table in JOINED:
            found = {**column_texts(table), **found}
        del found["epoch"]
        return found
    return {**holder(view), **column_texts(view)}


def holder(table: str) -> dict[str, str]:
    """Return the columns in front of a table's own; ``records_key`` of run_stages is its own."""
    own = column_texts(table)
    return {name: text for name, text in HOLDER.items() if name not in own}
