"""From text to verl's dotted settings: a shell command, a block of overrides, or YAML."""

import ast
import operator
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from rlcore.recipes import parse_override
from schemas.errors import UserError

TRAINERS = ("main_ppo", "main_dapo")  # verl.trainer.main_ppo, recipe.dapo.main_dapo, forks of them
NOT_TRAINERS = {
    "data_preprocess": "data is prepared by the stage prepare_data: name the files or the hub"
    " dataset in data.sources of a recipe",
    "model_merger": "every run ends with its model in Hugging Face form (stage export), so there is"
    " nothing to merge",
    "sft_trainer": "SFT is the section sft of a recipe, not a separate run",
}
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^{}]*))?\})")
_ARITHMETIC = re.compile(r"\$\(\(([^()$]+)\)\)")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the text sets, by dotted key as written; later settings replace earlier ones.

    ``excerpt``: the text is part of a run only (``...``, or settings without a command).
    ``deleted``: keys after Hydra's ``~``. ``config_files``: values of --config-name and the like.
    """

    values: dict[str, Any]
    excerpt: bool
    deleted: tuple[str, ...] = ()
    config_files: tuple[str, ...] = ()


def read_settings(text: str) -> Settings:
    """Return the settings of a verl command, a block of ``a.b=c`` lines, or a YAML config.

    Raises UserError for text that is none of them, a command that is not verl's trainer, or a shell
    variable without a value.
    """
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise UserError("nothing to translate: give a verl command line, or a file with one")
    if re.match(r"\s*[\w.'\"]+\s*:(\s|$)", lines[0]):
        return _read_yaml(text)
    statements = _statements(text)
    command = next((i for i, words in enumerate(statements) if "-m" in words), None)
    if command is None:
        return _read_overrides([word for words in statements for word in words], excerpt=True)
    variables = _variables(statements[:command])
    words = [_expand(word, variables) for word in statements[command]]
    start = words.index("-m")
    _check_trainer(words[start + 1] if start + 1 < len(words) else "")
    return _read_overrides(words[start + 2 :], excerpt=False)


def _statements(text: str) -> list[list[str]]:
    joined = re.sub(r"\\[ \t]*\n", " ", text)
    joined = _ARITHMETIC.sub(lambda match: "".join(match[0].split()), joined)
    try:
        split = [_words(line) for line in joined.splitlines()]
    except ValueError as error:
        raise UserError(f"the command does not read as shell: {error}; close the quotes") from None
    return [words for words in split if words]


def _words(line: str) -> list[str]:
    """Split as the shell does; ``;`` ends a word."""
    words = shlex.shlex(line, posix=True, punctuation_chars=";")
    words.whitespace_split = True
    return list(words)


def _check_trainer(module: str) -> None:
    if module.rsplit(".", 1)[-1] in TRAINERS:
        return
    for part, ours in NOT_TRAINERS.items():
        if part in module:
            raise UserError(f"'{module}' is not verl's trainer: {ours}")
    raise UserError(
        f"'{module}' is not verl's trainer; a command starts with python3 -m verl.trainer.main_ppo"
    )


def _variables(statements: list[list[str]]) -> dict[str, str]:
    """Return the variables set by lines such as ``NAME=value`` and ``export NAME=value`` before the
    command."""
    variables: dict[str, str] = {}
    for words in statements:
        for word in words[1:] if words[0] in {"export", "local", "readonly"} else words:
            name, separator, value = word.partition("=")
            if separator and name.isidentifier():
                variables[name] = _expand(value, variables)
    return variables


def _expand(word: str, variables: Mapping[str, str]) -> str:
    """Replace ``$NAME``, ``${NAME}``, ``${NAME:-default}`` and ``$((a * b))`` in one word.

    ``${a.b}`` is Hydra's and stays; so does ``$@``, which stands for more settings.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = variables.get(name, os.environ.get(name, match[3]))
        if found is None:
            raise UserError(f"shell variable ${name} has no value in the text; write its value out")
        return found

    before = None
    while word != before:  # a default may hold a variable in turn
        before, word = word, _VARIABLE.sub(value, word)
    return _ARITHMETIC.sub(lambda match: str(_number(match[1], variables)), word)


def _number(expression: str, variables: Mapping[str, str]) -> int:
    def evaluate(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name) and variables.get(node.id, "").isdigit():
            return int(variables[node.id])
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](evaluate(node.left), evaluate(node.right))
        raise UserError(f"$(({expression})) is arithmetic that is not supported; write the number")

    try:
        return evaluate(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError):
        raise UserError(f"$(({expression})) is not arithmetic; write the number") from None


def _read_overrides(words: list[str], *, excerpt: bool) -> Settings:
    values: dict[str, Any] = {}
    deleted, config_files = [], []
    waiting = iter(words)
    for word in waiting:
        if word in {"|", "||", "&&", ";", "&"} or re.match(r"\d?>", word):
            break
        if word in {"...", "…", "$@"}:
            excerpt = True
        elif word.startswith("-"):
            flag, _, value = word.partition("=")
            config_files.append(f"{flag}={value or next(waiting, '')}")
        elif word.startswith("~"):
            key = word[1:].partition("=")[0]
            values.pop(key, None)
            deleted.append(key)
        else:
            key, value = _override(word.lstrip("+"))
            values[key] = value
    return Settings(values, excerpt, tuple(deleted), tuple(config_files))


def _override(word: str) -> tuple[str, Any]:
    key, separator, value = word.partition("=")
    if not separator or not key:
        raise UserError(f"'{word}' is not of the form key=value; fix or remove it")
    try:
        return parse_override(word)
    except UserError:
        return key, value  # text that is not YAML is text


def _read_yaml(text: str) -> Settings:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"the config is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise UserError("the config holds no settings; give key: value lines")
    return Settings(dict(_flatten(tree)), excerpt=True)


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return leaves by dotted key; lists are leaves, ``_target_`` and Hydra's ``???`` are none."""
    flat: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat += _flatten(value, f"{prefix}{key}.")
        elif key != "_target_" and value != "???":
            flat.append((f"{prefix}{key}", value))
    return flat
