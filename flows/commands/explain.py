"""``rl-pipeline explain``: what a key of a recipe means, and what sets it."""

import argparse
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from flows.commands.arguments import add_overrides, overrides_of
from flows.paths import RECIPES
from flows.recipe_keys import Key, keys
from rlcore.recipes.origins import BY_RULE, Origins, brief
from schemas.errors import UserError

NEAREST = 6  # names in the error of an unknown key


def add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "key", metavar="KEY", help="e.g. rl.rollout.samples, or a section: rl.rollout"
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="show its value there")
    add_overrides(parser)
    parser.set_defaults(command=explain)


def explain(options: argparse.Namespace) -> int:
    """Print meaning, type, limits and default of a key, or the keys of a section; with a recipe
    also its value there and every place that sets it."""
    path = options.key.strip().replace("[", ".").replace("]", "")
    generic = re.sub(r"\.\d+(?=\.|$)", ".0", path)
    known = keys()
    found = [key for key in known if key.path == generic]
    below = [key for key in known if key.path.rpartition(".")[0] == generic]
    if not found and not below:
        raise UserError(_unknown(options.key, generic, [key.path for key in known]))
    shown = []
    if options.recipe is not None:  # one that is wrong is refused before anything is printed
        origins = Origins(options.recipe, overrides_of(options), directory=RECIPES)
        shown = _recipe_lines(origins, path)
    for key in found:
        print("\n".join(_key_lines(key)))
    if below:
        print("keys:")
        width = max(len(key.path) for key in below)
        print(*(f"  {key.path:{width}}  {key.meaning}" for key in below), sep="\n")
    for line in shown:
        print(line)
    return 0


def _unknown(key: str, path: str, known: list[str]) -> str:
    """Return the error for a key that no recipe has, with the nearest names: by its last part,
    then by all of it."""
    ends = dict.fromkeys(name.rpartition(".")[2] for name in known)
    last = get_close_matches(path.rpartition(".")[2], ends, cutoff=0.7)
    near = [name for part in last for name in known if name.rpartition(".")[2] == part]
    near += get_close_matches(path, known, n=NEAREST)
    names = ", ".join(list(dict.fromkeys(near))[:NEAREST])
    remedy = f"did you mean {names}?" if names else "docs/reference/recipe.md lists all keys"
    return f"'{key}' is not a key of a recipe; {remedy}"


def _key_lines(key: Key) -> Iterator[str]:
    yield f"{key.path}{f' (kind {key.kind})' if key.kind else ''}: {key.meaning}"
    presets = ", ".join(f"{name} {value}" for name, value in key.presets.items())
    lines = {"type": key.type, "limits": key.limits, "default": key.default, "presets": presets}
    for what, text in lines.items():
        if text:
            yield f"  {what:8}  {text.replace('`', '')}"


def _recipe_lines(origins: Origins, path: str) -> Iterator[str]:
    """Yield the value of ``path`` in a recipe, or of all keys below it, and what sets each."""
    here, name = f"{Path.cwd()}/", origins.recipe.name
    mine = [v for v in origins.values() if v.path == path or v.path.startswith(f"{path}.")]
    if not mine:
        yield f"recipe {name} has no {path}: its section is null, or of another kind"
    for value in mine:
        by = value.place or ("default" if value.value == value.default else BY_RULE)
        yield f"in recipe {name}: {value.path} = {brief(value.value)} ({by.removeprefix(here)})"
        for setting in origins.settings(value.path):
            if setting.place != value.place:
                yield f"  overrides {brief(setting.value)} of {setting.place.removeprefix(here)}"
