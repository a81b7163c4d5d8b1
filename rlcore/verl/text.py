"""From text to verl's dotted settings: a script, a trace of one, a block of overrides, or YAML."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from rlcore.recipes.load import parse_override
from rlcore.recipes.text import LONGEST, BoundedLoader
from rlcore.verl.shell.expansion import Expansion, Text, Variables, shown
from rlcore.verl.shell.parser import Body, Simple, parse
from rlcore.verl.shell.script import read_script
from schemas.errors import UserError

# verl.trainer.main_ppo, main_ppo_sync, recipe.dapo.main_dapo, and forks of them.
TRAINERS = ("main_ppo", "main_ppo_sync", "main_dapo")
NOT_TRAINERS = {
    "data_preprocess": "data is prepared by the stage prepare_data: name the files or the hub"
    " dataset in data.sources of a recipe (MATH: kind math; prompts that an environment makes: kind"
    " environment with train_size and validation_size)",
    "model_merger": "every run ends with its model in Hugging Face form (stage export), so there is"
    " nothing to merge",
    "sft_trainer": "SFT is the section sft of a recipe, not a separate run",
}
START = "a command starts with python3 -m verl.trainer.main_ppo"
MORE = ("...", "…")  # in place of settings that are not shown
WHOLE_CONFIG = {"actor_rollout_ref", "algorithm", "data", "trainer"}
_TRACE = re.compile(r"\++ +(.*)")  # a line of `bash -x`


@dataclass(frozen=True, slots=True)
class VerlSettings:
    """What the text sets, by dotted key as written; later settings replace earlier ones.

    ``excerpt``: the text is part of a run only (``...``, or settings without a command).
    ``defaults``: a config, which lists verl's defaults beside what was asked for. ``deleted``: keys
    after Hydra's ``~``. ``config_files``: values of --config-name and the like. ``unread``: keys
    whose value only running the script could tell, and why. ``remarks``: how it was read.
    """

    values: dict[str, Any]
    excerpt: bool
    defaults: bool = False
    deleted: tuple[str, ...] = ()
    config_files: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def read_settings(text: str) -> VerlSettings:
    """Return the settings of a verl script or command, the output of ``bash -x`` on one, a block of
    ``a.b=c`` lines, or a YAML config such as Hydra's.

    Raises UserError for text that is none of them, a command that is not verl's trainer, and a
    script whose command only running it could tell.
    """
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise UserError("nothing to translate: give a verl command line, or a file with one")
    if re.match(r"\s*[\w.'\"]+\s*:(\s|$)", lines[0]):
        return _read_yaml(text)
    try:
        return _read_trace(text.splitlines()) or _read_shell(text)
    except RecursionError:
        raise UserError("the command is nested too deeply to be read; write it flat") from None


def _read_trace(lines: list[str]) -> VerlSettings | None:
    """Return the settings of the trainer's command in what ``bash -x`` printed; None: no trace."""
    starts = [index for index, line in enumerate(lines) if _TRACE.match(line)]
    for start, end in zip(starts, [*starts, len(lines)][1:], strict=True):
        command = _TRACE.sub(r"\1", lines[start])
        if not _trainer_end(command.split()):
            continue
        try:
            body = parse(command)
        except UserError:  # a value with line ends
            body = parse("\n".join([command, *lines[start + 1 : end]]))
        found = read_script(body, lambda words: _trainer_end(words) is not None).command
        if found is not None:
            return _read_overrides(found[_trainer_end([word.value for word in found]) :], [])
    if starts and starts[0] == next(i for i, line in enumerate(lines) if line.strip()):
        raise UserError(f"the output of bash -x holds no command of verl's trainer: {START}")
    return None


def _read_shell(text: str) -> VerlSettings:
    body = parse(text)
    if (block := _block(body)) is not None:
        return _read_overrides(block, [], excerpt=True)
    reading = read_script(body, lambda words: _trainer_end(words) is not None)
    if reading.command is not None:
        start = _trainer_end([word.value for word in reading.command])
        return _read_overrides(reading.command[start:], reading.remarks)
    lines = [[word.value for word in words] for words in reading.commands]
    for words in lines:
        _check_trainer(words)
    said = [" ".join(words[1:]) for words in lines if words[0] == "echo"]
    ended = f"line {reading.ended} exits" + (f" after '{shown(said[0])}'" if said else "")
    raise UserError(
        f"the script starts no trainer of verl{f': {ended}' if reading.ended else ''}; give the"
        f" script whose command does ({START})"
    )


def _trainer_end(words: Sequence[str]) -> int | None:
    """Return where the settings begin in the words of a command of verl's trainer, else None."""
    for at, word in enumerate(words):
        module = words[at + 1] if word == "-m" and at + 1 < len(words) else ""
        if module.rsplit(".", 1)[-1] in TRAINERS:
            return at + 2
        if word.endswith(".py") and word.rsplit("/", 1)[-1].removesuffix(".py") in TRAINERS:
            return at + 1
    return None


def _check_trainer(words: Sequence[str]) -> None:
    """Raise UserError for a command that runs another module."""
    if "-m" not in words:
        return
    module = "".join(words[words.index("-m") + 1 :][:1])
    for part, ours in NOT_TRAINERS.items():
        if part in module:
            raise UserError(f"'{module}' is not verl's trainer: {ours}")
    raise UserError(f"'{module}' is not verl's trainer; {START}")


def _block(body: Body) -> list[Text] | None:
    """Return the words of a text that is settings only, line by line; None for a script."""
    variables: Variables = {name: Text(value) for name, value in os.environ.items()}
    expansion = Expansion(variables, lambda piece: Text(f"$({piece.text})"))
    words: list[Text] = []
    for statement in body:
        if not isinstance(statement, Simple) or any(word.array for word in statement.words):
            return None
        found = [text for word in statement.words for text in expansion.fields(word)]
        values = [text.value for text in found]
        if "-m" in values:
            return None
        if len(body) > 1 and not all("=" in v or v in MORE or v.startswith("~") for v in values):
            return None
        words += found
    return words


def _read_overrides(
    words: Sequence[Text], remarks: Sequence[str], *, excerpt: bool = False
) -> VerlSettings:
    values: dict[str, Any] = {}
    unread: dict[str, str] = {}
    deleted, config_files = [], []
    waiting = iter(words)
    for text in waiting:
        word = text.value
        if word in MORE:
            excerpt = True
        elif word.startswith("-"):
            flag, _, value = word.partition("=")
            config_files.append(f"{flag}={value or next(waiting, Text('')).value}")
        elif word.startswith("~"):
            key = word[1:].partition("=")[0]
            values.pop(key, None)
            deleted.append(key)
        else:
            key, value = _override(text)
            values[key] = value
            unread.pop(key, None)
            if text.problem:
                unread[key] = text.problem
    return VerlSettings(
        values,
        excerpt,
        deleted=tuple(deleted),
        config_files=tuple(config_files),
        unread=unread,
        remarks=tuple(remarks),
    )


def _override(text: Text) -> tuple[str, Any]:
    word = text.value.lstrip("+")
    key, separator, value = word.partition("=")
    if text.problem and not re.fullmatch(r"[\w.@/-]+", key):
        raise UserError(text.problem)
    if not separator or not re.fullmatch(r"\S+", key):
        raise UserError(f"'{shown(word)}' is not of the form key=value; fix or remove it")
    if text.problem:
        return key, value
    try:
        return parse_override(word)
    except UserError:
        return key, value  # text that is not YAML is text


def _read_yaml(text: str) -> VerlSettings:
    if len(text) > LONGEST:
        raise UserError(f"the config has {len(text):,} characters; give one of at most {LONGEST:,}")
    try:
        tree = yaml.load(text, Loader=BoundedLoader)
    except yaml.YAMLError as error:
        raise UserError(f"the config is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise UserError("the config holds no settings; give key: value lines")
    whole = tree.keys() >= WHOLE_CONFIG
    return VerlSettings(dict(_flatten(tree)), excerpt=not whole, defaults=whole)


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return leaves by dotted key; lists are leaves, ``_target_`` and Hydra's ``???`` are none."""
    flat: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat += _flatten(value, f"{prefix}{key}.")
        elif key != "_target_" and value != "???":
            flat.append((f"{prefix}{key}", value))
    return flat
