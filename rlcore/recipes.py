"""From a YAML file and dotted overrides to a validated ``Recipe``; every error in one sentence."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from schemas.errors import UserError, did_you_mean
from schemas.presets import overlay
from schemas.recipe import Recipe


def load_recipe(
    name: str, overrides: Mapping[str, Any] | None = None, *, directory: Path
) -> Recipe:
    """Return the recipe ``name`` of ``directory`` (or the YAML file at the path ``name``).

    A file with ``extends: other`` holds only what differs from the recipe ``other`` of its folder;
    with ``extends: [one, two]``, the values of ``two`` override those of ``one``. ``overrides``
    maps dotted paths to values, e.g. ``{"rl.update.optimizer.lr": 2e-6}``; a number indexes a list.
    Raises UserError with dotted path, value, rule and remedy.
    """
    return resolve_recipe(name, read_tree(name, directory), overrides)


def resolve_recipe(
    name: str, tree: dict[str, Any], overrides: Mapping[str, Any] | None = None
) -> Recipe:
    """Return the recipe that ``tree`` holds once the dotted ``overrides`` are set in it.

    ``name`` is its name in errors. Raises UserError with dotted path, value, rule and remedy.
    """
    for path, value in (overrides or {}).items():
        set_key(tree, path, value)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise UserError(_sentence(name, error)) from None


def recipe_names(directory: Path) -> list[str]:
    """Return the names of the recipes in ``directory``, sorted, without files such as
    ``_base.yaml``."""
    return sorted(path.stem for path in directory.glob("[!_]*.yaml"))


def user_functions(recipe: Recipe) -> list[str]:
    """Return the functions that the RL stage imports as 'package.module:function': rewards,
    estimator, loss."""
    algorithm = recipe.rl.algorithm
    names = [function.name for function in recipe.reward.functions]
    return [name for name in (*names, algorithm.advantage, algorithm.policy_loss) if ":" in name]


def recipe_digest(recipe: Recipe) -> str:
    """Return the sha256 of the resolved recipe's canonical JSON."""
    text = json.dumps(recipe.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def parse_override(text: str) -> tuple[str, Any]:
    """Split ``"rl.iterations=5"`` into path and value; the value is read as YAML.

    Raises UserError when there is no ``=``, or the value is not YAML.
    """
    path, separator, value = text.partition("=")
    if not separator or not path:
        raise UserError(f"override {text!r} is not of the form path=value, e.g. rl.iterations=5")
    try:
        return path.strip(), _number_if_scientific(yaml.safe_load(value))
    except yaml.YAMLError:
        raise UserError(
            f"override {path.strip()} = {value!r} is not YAML; close its brackets and quotes"
        ) from None


def _number_if_scientific(value: Any) -> Any:
    """YAML 1.1 reads ``2e-6`` as text; people mean the number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def read_tree(
    name: str,
    directory: Path,
    seen: tuple[str, ...] = (),
    own: Callable[[Path, dict[str, Any]], dict[str, Any]] = lambda path, tree: tree,
) -> dict[str, Any]:
    """Return what the file of recipe ``name`` and those it extends set, before any validation.

    ``seen``: the files that led here. ``own`` is given each file's own tree, base first, and
    returns what stands for it. Raises UserError as ``load_recipe`` does.
    """
    is_path = name.endswith((".yaml", ".yml"))
    path = Path(name) if is_path else directory / f"{name}.yaml"
    if not path.is_file():
        if is_path:
            raise UserError(f"recipe file '{name}' does not exist; give the path of a YAML file")
        names = recipe_names(directory)
        raise UserError(
            f"recipe '{name}' is not one of {', '.join(names)}{did_you_mean(name, names)};"
            " give one of these names or the path of a YAML file"
        )
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        detail = " ".join(str(error).split())
        raise UserError(f"recipe file '{path}' is not valid YAML: {detail}") from None
    if not isinstance(tree, dict):
        raise UserError(f"recipe file '{path}' holds {type(tree).__name__}, not sections")
    bases = tree.pop("extends", [])
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        _check_base(str(base), path, seen)
        merged = overlay(merged, read_tree(str(base), path.parent, (*seen, path.stem), own))
    return overlay(merged, own(path, _numbers(tree)))


def _check_base(name: str, path: Path, seen: tuple[str, ...]) -> None:
    """Raise UserError unless the file ``path`` can extend the recipe ``name``."""
    if path.stem in (*seen, name):
        raise UserError(f"recipe file '{path}' extends '{name}', which leads back to itself")
    if not (path.parent / f"{name}.yaml").is_file():
        raise UserError(
            f"recipe file '{path}' extends '{name}', and there is no {name}.yaml in its folder;"
            " name a recipe of the same folder"
        )


def _numbers(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _numbers(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_numbers(value) for value in tree]
    looks_scientific = isinstance(tree, str) and "e" in tree.lower() and tree[:1].isdigit()
    return _number_if_scientific(tree) if looks_scientific else tree


def set_key(tree: Any, path: str, value: Any) -> None:
    """Assign ``value`` at the dotted ``path``, creating missing sections."""
    *parents, last = path.split(".")
    node = tree
    for depth, part in enumerate(parents):
        here = ".".join(parents[: depth + 1])
        if isinstance(node, list):
            node = node[_index(node, part, path)]
            continue
        child = node.get(part)
        if child is None:
            child = node[part] = {}
        elif not isinstance(child, dict | list):
            raise UserError(
                f"override '{path}': '{here}' is the value {child!r}, not a section;"
                f" override '{here}' itself"
            )
        node = child
    if isinstance(node, list):
        node[_index(node, last, path)] = value
    else:
        node[last] = value


def _index(items: list[Any], part: str, path: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise UserError(
            f"override '{path}': '{part}' must be an index from 0 to {len(items) - 1},"
            " since the recipe has a list there"
        )
    return int(part)


def _sentence(name: str, error: ValidationError) -> str:
    """Return the first error as a sentence: dotted path, value, rule, nearest valid name, and the
    number of further errors."""
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    parts, fields = _located(first["loc"])
    path = ".".join(parts) or "recipe"
    if first["type"] == "extra_forbidden":
        near = did_you_mean(parts[-1], fields)
        rule = f"is not a known key{near}; valid keys there: {', '.join(sorted(fields))}"
    elif first["type"] == "missing":
        rule = "is required; add it to the recipe"
    else:
        message = first["msg"].removeprefix("Value error, ")
        value = first["input"]
        shown = "" if isinstance(value, dict | BaseModel) else f" = {_short(value)}"
        joiner = ": " if first["type"] == "value_error" else " is refused: "
        rule = f"{shown}{joiner}{message[0].lower()}{message[1:]}"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    space = "" if rule.startswith((":", " =", " is")) else " "
    return f"recipe '{name}': {path}{space}{rule}{more}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _located(location: Sequence[str | int]) -> tuple[list[str], list[str]]:
    """Return the keys of a pydantic location, and the field names of the section that holds the
    last one.

    pydantic also names the member of a union that it tried, by its ``kind``; a recipe has no such
    key.
    """
    parts: list[str] = []
    sections: list[type[BaseModel]] = [Recipe]
    inner = sections
    for part in location:
        kinds = {m.model_fields["kind"].default: m for m in inner if "kind" in m.model_fields}
        if len(inner) > 1 and part in kinds:
            inner = [kinds[part]]
            continue
        parts.append(str(part))
        if isinstance(part, int):
            continue
        sections = inner
        found = [m.model_fields[part].annotation for m in sections if part in m.model_fields]
        inner = _members(found[0]) if found else []
    return parts, [field for section in sections for field in section.model_fields]


def _members(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models inside an annotation such as ``tuple[Annotated[A | B], ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _members(part)]
