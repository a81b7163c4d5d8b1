"""Which part of a recipe each stage's result depends on: what the stage's key is made of."""

from pathlib import PurePath
from typing import Any

from schemas.algorithm import IN_KEYS
from schemas.names import BASE_MODEL, PREFERENCE

# How the weights of the base model, which are a parent, are loaded and run.
_LOADED = {"dtype", "max_tokens", "trust_remote_code"}
_TRAINED = {"adapter", *_LOADED}
# The sections that each stage's result depends on; a set lists keys of a section.
STAGE_SLICES: dict[str, dict[str, bool | set[str]]] = {
    BASE_MODEL: {"model": {"chat_template", "stop_tokens", "trust_remote_code"}},
    "prepare_data": {"seed": True, "data": True, "sft": {"enabled", "max_tokens"}},
    "sft": {"seed": True, "model": _TRAINED, "sft": True},
    PREFERENCE: {"seed": True, "model": _TRAINED, "preference": True},
    "reward_model": {"seed": True, "model": _TRAINED, "reward_model": True},
    "rl": {"seed": True, "model": _TRAINED, "reward": True, "rl": True},
    "evaluate": {"seed": True, "model": _LOADED, "reward": True, "evaluate": True},
    # The model card names the recipe and the model's path.
    "export": {"name": True, "model": {"path", *_LOADED}, "export": True},
}
# A base model from scratch: its shape, its draw, and the text that its tokenizer is trained on.
_FROM_SCRATCH: dict[str, bool | set[str]] = {
    "seed": True,
    "model": {"chat_template", "dtype", "from_scratch", "stop_tokens"},
    "data": {"sources"},
}


# Guards, bookkeeping and display: they may end a run or show it differently, not change its result.
NOT_IN_KEYS: dict[str, set[str]] = {
    "sft": {"checkpoint_every"},
    "preference": {"checkpoint_every"},
    "reward_model": {"checkpoint_every", "base", "base_revision"},  # which counts by its files
    "reward": {"max_error_fraction", "max_timeout_fraction", "sandbox"},
    "rl": {"checkpoint", "max_logprob_gap", "max_mult_prob_error", "max_canary_gap"},
    "evaluate": {"completions_shown"},
}


# Fields that are younger than keys in use: where one is empty, or has its default, the keys are
# those of before it.
IN_KEYS_IF_SET = (
    ("model", "adapter"),
    ("model", "stop_tokens"),
    ("reward", "ensemble"),
    ("rl", "enabled"),
    ("rl", "rollout", "stop"),
    ("rl", "update", "ema"),
    ("rl", "rollout", "max_staleness"),
    ("rl", "algorithm", "kl", "every"),
    ("rl", "algorithm", "importance_correction", "mode"),
    ("rl", "algorithm", "importance_correction", "low"),
    ("rl", "algorithm", "importance_correction", "reject"),
    ("evaluate", "stop"),
    ("evaluate", "win_rate"),
    ("reward_model", "preferences", "stop"),
    ("reward_model", "preferences", "ranked_by"),
)

# Sections with a path, as sources.
_READ_FILES = (("rl", "ptx"), ("preference", "data"), ("reward_model", "preferences"))


def own_part(recipe: Any, stage: str) -> dict[str, Any]:
    """Return what ``STAGE_SLICES`` says that ``stage`` depends on; ``recipe``: a ``Recipe``."""
    from_scratch = stage == BASE_MODEL and recipe.model.from_scratch is not None
    sections = _FROM_SCRATCH if from_scratch else STAGE_SLICES[stage]
    hidden = {name: keys for name, keys in NOT_IN_KEYS.items() if sections.get(name) is True}
    part = recipe.model_dump(mode="json", include=sections, exclude=hidden, context=IN_KEYS)
    if adapter := (part.get("model") or {}).get("adapter"):
        part["model"]["adapter"] = adapter if recipe.model.adapter_of(stage) else None
        del adapter["stages"]
    for *path, name in IN_KEYS_IF_SET:
        inner: dict[str, Any] = part
        section: Any = recipe
        for step in path:
            inner, section = inner.get(step) or {}, getattr(section, step, None)
        if name in inner and inner[name] in (None, [], type(section).model_fields[name].default):
            del inner[name]
    _name_files(part)
    return part


def _name_files(part: dict[str, Any]) -> None:
    """Leave of the paths of files their names: what is in them counts by its digest, wherever it
    lies and however the way there is written."""
    sections = [*(part.get("data") or {}).get("sources", ())]
    sections += [(part.get(name) or {}).get(key) for name, key in _READ_FILES]
    for section in sections:
        if section and section.get("path") and "://" not in section["path"]:
            section["path"] = PurePath(section["path"]).name
