"""The version of each table's schema; light, unlike the contracts in ``schemas/tables.py``."""

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
