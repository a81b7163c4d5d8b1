"""``rl-pipeline explain``: what a key of a recipe means, and what sets it."""

import argparse
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.commands.arguments import add_overrides, overrides_of
from flows.output import add_format, print_rows
from flows.paths import RECIPES
from schemas.errors import UserError

if TYPE_CHECKING:
    from flows.reference import Key
    from rlcore.recipes.origins import Origins, Value

NEAREST = 6  # names in the error of an unknown key
Rows = tuple[tuple[str, ...], list[dict[str, Any]]]


def add_explain(commands: Any) -> None:
    parser = commands.add_parser("explain", help="what a key of a recipe means, and what sets it")
    parser.add_argument(
        "key", metavar="KEY", help="e.g. rl.rollout.samples, or a section: rl.rollout"
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="show its value there")
    add_overrides(parser)
    add_format(parser, others="the keys, or with RECIPE the values there and what sets them")
    parser.set_defaults(command=explain)


def explain(options: argparse.Namespace) -> int:
    """Print meaning, type, limits and default of a key, or the keys of a section; with a recipe
    also its value there and every place that sets it."""
    from flows.reference import keys
    from rlcore.recipes.origins import Origins

    path = options.key.strip().replace("[", ".").replace("]", "")
    generic = re.sub(r"\.\d+(?=\.|$)", ".0", path)
    known = keys()
    found = [key for key in known if key.path == generic]
    below = [key for key in known if key.path.rpartition(".")[0] == generic]
    if not found and not below:
        raise UserError(_unknown(options.key, generic, [key.path for key in known]))
    origins = None
    if options.recipe is not None:
        overrides = overrides_of(options)
        origins = Origins(options.recipe, overrides, directory=RECIPES)
    if options.format != "table":
        columns, rows = _key_rows([*found, *below]) if origins is None else _rows(origins, path)
        print_rows(rows, columns, options.format)
        return 0
    for key in found:
        print("\n".join(_key_lines(key)))
    if below:
        print("keys:")
        width = max(len(key.path) for key in below)
        print(*(f"  {key.path:{width}}  {key.meaning}" for key in below), sep="\n")
    if origins is not None:
        print("\n".join(_recipe_lines(origins, path)))
    return 0


def _unknown(key: str, path: str, known: list[str]) -> str:
    """Return the error for a key that no recipe has, with the nearest names: by its last part,
    then by all of it."""
    by_last: dict[str, list[str]] = {}
    for name in known:
        by_last.setdefault(name.rpartition(".")[2], []).append(name)
    last = get_close_matches(path.rpartition(".")[2], by_last, cutoff=0.7)
    near = [name for part in last for name in by_last[part]]
    near += get_close_matches(path, known, n=NEAREST)
    names = ", ".join(list(dict.fromkeys(near))[:NEAREST])
    remedy = f"did you mean {names}?" if names else "docs/reference/recipe.md lists all keys"
    return f"'{key}' is not a key of a recipe; {remedy}"


def _key_lines(key: "Key") -> Iterator[str]:
    yield f"{key.path}{f' (kind {key.kind})' if key.kind else ''}: {key.meaning}"
    presets = ", ".join(f"{name} {value}" for name, value in key.presets.items())
    lines = {"type": key.type, "limits": key.limits, "default": key.default, "presets": presets}
    for what, text in lines.items():
        if text:
            yield f"  {what:8}  {text.replace('`', '')}"


def _key_rows(found: list["Key"]) -> Rows:
    """Return columns and a row per key, without the marks of Markdown."""
    columns = ("key", "kind", "type", "limits", "default", "presets", "meaning")
    rows = [
        {
            "key": key.path,
            "kind": key.kind or None,
            "type": key.type,
            "limits": key.limits.replace("`", "") or None,
            "default": key.default.replace("`", ""),
            "presets": {name: value.replace("`", "") for name, value in key.presets.items()},
            "meaning": key.meaning.replace("`", ""),
        }
        for key in found
    ]
    return columns, rows


def _rows(origins: "Origins", path: str) -> Rows:
    """Return columns and a row per value at ``path`` or below it in a recipe, with what sets it."""
    columns = ("key", "value", "set_by", "overrides")
    rows = [
        {
            "key": value.path,
            "value": _json_value(value.value),
            "set_by": _set_by(value),
            "overrides": [
                {"place": setting.place, "value": _json_value(setting.value)}
                for setting in origins.settings(value.path)
                if setting.place != value.place
            ],
        }
        for value in _at(origins, path)
    ]
    return columns, rows


def _json_value(value: Any) -> Any:
    """Return a value of a recipe as JSON has it; a section is that of its keys."""
    from schemas.section import Section

    return value.model_dump(mode="json") if isinstance(value, Section) else value


def _at(origins: "Origins", path: str) -> "list[Value]":
    values = origins.values()
    return [v for v in values if v.path == path or v.path.startswith(f"{path}.")]


def _set_by(value: "Value") -> str:
    from rlcore.recipes.origins import BY_RULE

    return value.place or ("default" if value.value == value.default else BY_RULE)


def _recipe_lines(origins: "Origins", path: str) -> Iterator[str]:
    """Yield the value of ``path`` in a recipe, or of all keys below it, and what sets each."""
    from rlcore.recipes.origins import brief

    here = f"{Path.cwd()}/"

    mine = _at(origins, path)
    name = origins.recipe.name
    if not mine:
        yield f"recipe {name} has no {path}: its section is null, or of another kind"
    for value in mine:
        by = _set_by(value).removeprefix(here)
        yield f"in recipe {name}: {value.path} = {brief(value.value)} ({by})"
        for setting in origins.settings(value.path):
            if setting.place != value.place:
                yield f"  overrides {brief(setting.value)} of {setting.place.removeprefix(here)}"
