"""verl's keys and what becomes of each (``keys.yaml``), looked up by their full or short name."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from schemas.errors import UserError, did_you_mean

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{role}" for role in ("actor", "rollout", "model"))


@dataclass(frozen=True, slots=True)
class To:
    """One key that becomes one of ours, read as ``kind`` (``Run.read``)."""

    ours: str
    kind: str | list[str]
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """Read together with other keys by the function of that name in ``translate.TOGETHER``."""

    function: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """No counterpart. ``off``: values that switch it off, besides null, False and 0, or besides
    null only where it is on by default (``is_on``).

    ``differs``: without it the run learns something else; otherwise it is layout or bookkeeping.
    """

    why: str
    differs: bool = False
    off: tuple[Any, ...] = ()
    is_on: bool = False

    def is_off(self, value: Any) -> bool:
        """Return whether the value switches the feature off."""
        return (
            value is None or value in self.off or (not self.is_on and value in (False, 0, [], {}))
        )


Entry = To | Part | Unsupported


def _entry(fate: Mapping[str, Any]) -> Entry:
    match fate:
        case {"to": ours, "as": kind}:
            return To(ours, kind, fate.get("remark", ""))
        case {"with": function}:
            return Part(function)
    why = fate.get("lacks") or fate["differs"]
    return Unsupported(why, "differs" in fate, tuple(fate.get("idle", ())), "is_on" in fate)


def _read_keys() -> dict[str, Entry]:
    table = yaml.safe_load(Path(__file__).with_name("keys.yaml").read_text(encoding="utf-8"))
    return {
        f"{section}.{name}".lstrip("."): _entry(fate)
        for sections, fates in table.items()
        for names, fate in fates.items()
        for section in sections.split(", ")
        for name in names.split(", ")
    }


KEYS = _read_keys()
PATTERNS = sorted((key for key in KEYS if "*" in key), key=len, reverse=True)
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


def _found(key: str) -> Entry | None:
    patterns = (KEYS[pattern] for pattern in PATTERNS if fnmatchcase(key, pattern))
    return KEYS[key] if key in KEYS else next(patterns, None)


def entry(key: str) -> Entry:
    """Return how verl's full ``key`` is translated: its own entry, else that of the longest
    pattern. Raises UserError with the nearest known key."""
    found = _found(key)
    if found is None:
        raise UserError(
            f"'{key}' is not a known setting of verl{did_you_mean(key, KEYS)}; fix or remove it"
        )
    return found


def full_key(key: str) -> str:
    """Return verl's full key for one that was moved, or for a short form such as
    ``actor.optim.lr``, when it is the ending of only one key.

    Unknown keys come back unchanged.
    """
    for new, old in MOVED.items():
        if key == new or (new.endswith(".") and key.startswith(new)):
            return old + key.removeprefix(new)
    if _found(key) is not None:
        return key
    ends = [known for known in KEYS if known.endswith(f".{key}")]
    if len(ends) > 1:
        raise UserError(f"'{key}' is the end of {' and of '.join(ends)}; write it in full")
    return ends[0] if ends else key


def lacking(values: Mapping[str, Any]) -> dict[str, Unsupported]:
    """Return the keys that are set, not off, and have no counterpart."""
    entries = {key: entry(key) for key in values}
    return {
        key: found
        for key, found in entries.items()
        if isinstance(found, Unsupported) and not found.is_off(values[key])
    }
