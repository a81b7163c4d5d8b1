"""What each SQL view over the store and each of its columns holds: for readers, and as comments in
SQL.

Texts only, as in ``schemas/columns.py``, which has those of the tables.
"""

from schemas.columns import COLUMNS, REWARDS, ROLLOUTS

# SQL views that are no tables: made from all manifests, or joined from tables.
VIEWS: dict[str, str] = {
    "artifacts": "a row per complete artifact of the store, from its manifest",
    "lineage": "a row per parent of an artifact",
    "trajectories": "a row per trajectory: rollout, episode, reward, advantage, own_logprobs",
    "runs": "a row per flow run: recipe, seed, how far it came, accuracy, keys of what it made",
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
        "code_fingerprint": "sha256 of what its key holds of code: versions, a user's functions",
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
        **REWARDS,
        **HOLDER,
        **ROLLOUTS,
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
