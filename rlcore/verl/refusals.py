"""What a verl run asks for and has no counterpart as a whole: no part of it is translated."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.verl.batches import files
from rlcore.verl.settings import ACTOR, MODEL, VerlRun
from schemas.errors import UserError

MEDIA = {"data.image_key": "images or video", "data.video_key": "video", "data.audio_key": "audio"}
PICTURED = ("geo3k", "geometry3k")  # datasets of images, by the names of their files
# Of verl's learner, that shard layers and not only data.
ENGINES = {"automodel", "hyperparallel", "megatron", "mindspeed", "mindspeedllm", "torchtitan"}
OBJECTIVES = {
    "distillation.enabled": "distillation",
    f"{MODEL}.mtp.enable": "multi-token prediction",
}
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
    found = [
        ("objective", what, f"{key} = True") for key, what in OBJECTIVES.items() if run.flag(key)
    ]
    found += list(_engines(run, config_files, defaults=defaults))[:1]
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
    here = [file for file in files(run, "data.train_files") if Path(file).is_file()]
    tables = [file for file in here if file.endswith(".parquet")]
    return {column for file in tables for column in pl.read_parquet_schema(file)}


def _engines(
    run: VerlRun, config_files: Sequence[str], *, defaults: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield the engine by each setting that tells of it."""
    keys = ("model_engine", f"{ACTOR}.strategy")
    told = [(str(run.get(key)), f"{key} = {run.get(key)}") for key in keys]
    told += [(flag, flag) for flag in config_files if flag.startswith("--config-name")]
    told += [(key, f"{key} = {run.shown(key)}") for key in run.values if not defaults]
    for text, setting in told:
        for name in ENGINES.intersection(re.split(r"[._=]", text)):
            yield "engine", name, setting
