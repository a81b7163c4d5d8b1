"""The version of each table's schema; light, unlike the contracts in ``schemas/tables.py``."""

# Raise a table's number when its columns or their meaning change: older files are then refused.
# Tables that are not named have 1.
VERSIONS: dict[str, int] = {
    "rollouts": 2,
    "baselines": 2,
    "rewards": 4,
    "baseline_rewards": 4,
    "validation_rewards": 4,
    "advantages": 3,
    "own_logprobs": 2,
    "completions": 3,
    "preferences": 2,
}


def schema_version(table: str) -> str:
    """Return ``name/vN`` of a table, as written in manifests and in the Parquet metadata."""
    return f"{table}/v{VERSIONS.get(table, 1)}"
