"""verl's keys and how each is translated, looked up by their full or short name.

Key names: verl's trainer config of 2025 and 2026, its DAPO recipe, AlphaApollo's ``env``.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from rlcore.from_verl.config_keys import CONFIG
from rlcore.from_verl.entries import Entry, To, Unsupported
from rlcore.from_verl.job_keys import JOB
from rlcore.from_verl.learning_keys import LEARNING
from schemas.errors import UserError, did_you_mean

KEYS: dict[str, Entry] = {**LEARNING, **JOB, **CONFIG}
# New place of a key -> the one it has in KEYS.
MOVED = {
    "reward.custom_reward_function.": "custom_reward_function.",
    "reward.num_workers": "reward_model.num_workers",
    "reward.reward_kwargs.": "reward_model.reward_kwargs.",
    "reward.reward_manager.name": "reward_model.reward_manager",
    "reward.reward_model.enable": "reward_model.enable",
    "reward.sandbox_fusion.": "reward_model.sandbox_fusion.",
    "sandbox_fusion.": "reward_model.sandbox_fusion.",
}


def entry(key: str) -> Entry:
    """Return how verl's full ``key`` is translated: its own entry, else that of the first pattern.

    Raises UserError with the nearest known key.
    """
    if key in KEYS:
        return KEYS[key]
    for pattern, found in KEYS.items():
        if "*" in pattern and fnmatchcase(key, pattern):
            return found
    raise UserError(
        f"'{key}' is not a known setting of verl{did_you_mean(key, KEYS)}; fix or remove it"
    )


def full_key(key: str) -> str:
    """Return verl's full key for one that was moved, or for a short form such as
    ``actor.optim.lr``, when it is the ending of only one key.

    Unknown keys come back unchanged.
    """
    for new, old in MOVED.items():
        if key == new or (new.endswith(".") and key.startswith(new)):
            return old + key.removeprefix(new)
    if key in KEYS or any("*" in known and fnmatchcase(key, known) for known in KEYS):
        return key
    ends = [known for known in KEYS if known.endswith(f".{key}")]
    if len(ends) > 1:
        raise UserError(f"'{key}' is the end of {' and of '.join(ends)}; write it in full")
    return ends[0] if ends else key


def convert(key: str, rule: To, value: Any) -> Any:
    """Return our value for verl's. Raises UserError naming key, value and rule."""
    try:
        return rule.convert(value)
    except (TypeError, ValueError) as error:
        why = str(error) if str(error).startswith("must") else "cannot be read"
        raise UserError(f"{key} = {value!r} {why}; it becomes {rule.ours}") from None


def lacking(values: Mapping[str, Any]) -> dict[str, Unsupported]:
    """Return the keys that are set, not off, and have no counterpart."""
    entries = {key: entry(key) for key in values}
    return {
        key: found
        for key, found in entries.items()
        if isinstance(found, Unsupported) and not found.is_off(values[key])
    }
