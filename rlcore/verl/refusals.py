"""What a verl run asks for and has no counterpart as a whole: no part of it is translated."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.verl.batches import files
from rlcore.verl.settings import ACTOR, KEYS, MODEL, VerlRun
from schemas.errors import UserError

# Objectives of verl, by the values that choose them, which have no counterpart.
OBJECTIVES = {
    key: KEYS[key].refused for key in ("algorithm.adv_estimator", f"{ACTOR}.policy_loss.loss_mode")
}
ENGINES = KEYS["model_engine"].refused  # of verl's learner, that shard layers and not only data
MEDIA = {"data.image_key": "images or video", "data.video_key": "video", "data.audio_key": "audio"}
PICTURED = ("geo3k", "geometry3k")  # datasets of images, by the names of their files
REMEDIES = {
    "objective": "take an objective that `rl-pipeline algorithms` lists",
    "media": "remove the key if the rows hold text only",
    "pictures": "give files of a text dataset",
    "engine": "train with FSDP in verl first (model_engine=dp) and translate that",
}


def refuse(run: VerlRun, config_files: Sequence[str], *, defaults: bool) -> None:
    """Raise UserError naming all that the run asks for and cannot get here.

    ``config_files``: verl's, by flag. ``defaults``: ``run`` lists verl's defaults too, among which
    ``data.image_key`` is set for text as well.
    """
    found = [*_objectives(run), *_engines(run, config_files, defaults=defaults)]
    found += [
        ("media", what, f"{key} = {run.get(key)}")
        for key, what in MEDIA.items()
        if run.has(key) and (not defaults or run.get(key) in _columns(run))
    ]
    train = "data.train_files"
    if any(name in file.lower() for file in files(run, train) for name in PICTURED):
        found.append(("pictures", "images", f"{train} = {run.shown(train)}"))
    if not found:
        return
    named = ", ".join(f"{what} ({setting})" for _, what, setting in found)
    remedies = dict.fromkeys(REMEDIES[kind] for kind, _, _ in found)
    raise UserError(
        f"no recipe: the run needs {named}, for which there is no counterpart;"
        f" {', and '.join(remedies)}"
    )


def media(run: VerlRun) -> dict[str, Any]:
    """Nothing; notes what a config that was not refused leaves open."""
    keys = [key for key in MEDIA if run.has(key)]
    if keys:
        run.note(
            f"{', '.join(keys)}: set by verl for text too; the recipe reads text only, so for rows"
            " with images, video or audio there is none"
        )
    return {}


def _columns(run: VerlRun) -> set[str]:
    """Return the columns of the training files that are here."""
    here = [Path(file) for file in files(run, "data.train_files")]
    return {
        column
        for file in here
        if file.suffix == ".parquet" and file.is_file()
        for column in pl.read_parquet_schema(file)
    }


def _objectives(run: VerlRun) -> Iterator[tuple[str, str, str]]:
    named: set[str] = set()
    if run.flag("distillation.enabled"):
        yield "objective", "distillation", "distillation.enabled = True"
    for key, names in OBJECTIVES.items():
        value = run.get(key)
        if value in names and names[value] not in named:
            named.add(names[value])
            yield "objective", names[value], f"{key} = {value}"
    if run.flag(f"{MODEL}.mtp.enable"):
        yield "objective", "multi-token prediction", f"{MODEL}.mtp.enable = True"


def _engines(
    run: VerlRun, config_files: Sequence[str], *, defaults: bool
) -> list[tuple[str, str, str]]:
    """Return the engine by the first setting that tells of it."""
    choices = ("model_engine", f"{ACTOR}.strategy")
    flags = [flag for flag in config_files if flag.startswith("--config-name")]
    keys = () if defaults else run.values
    values = ((key, str(run.get(key))) for key in choices)
    told = chain(  # no later one is read: it may refer to what is not set
        ((value, f"{key} = {value}") for key, value in values if value in ENGINES),
        ((name, flag) for flag in flags for name in ENGINES if f"_{name}_" in flag),
        ((name, f"{k} = {run.shown(k)}") for k in keys for name in ENGINES if f".{name}." in k),
    )
    return [("engine", ENGINES[name], setting) for name, setting in islice(told, 1)]
