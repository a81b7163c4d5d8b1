"""``rl-pipeline recipes``, ``algorithms`` and ``models``: what can be run by name, what each preset
needs, which one to choose, and a real model that a package ships, for recipes without a hub."""

import argparse
import os
from pathlib import Path

from flows.output import add_format, print_rows
from flows.paths import RECIPES
from rlcore.algorithms.catalogue import RECOMMENDATIONS, capabilities, recommend
from rlcore.models.smollm2 import FOLDER, write_smollm2
from rlcore.recipes.load import load_recipe, recipe_names
from schemas.presets import PRESETS


def add_recipes(parser: argparse.ArgumentParser) -> None:
    add_format(parser)
    parser.set_defaults(command=_recipes)


def _recipes(options: argparse.Namespace) -> int:
    rows = []
    for name in recipe_names(RECIPES):
        recipe = load_recipe(name, directory=RECIPES)
        rl, preference = recipe.rl, recipe.preference
        last = rl.preset if rl.enabled or preference is None else preference.algorithm
        rows.append(
            {
                "recipe": name,
                "preset": last,
                "iterations": rl.iterations if rl.enabled else 0,
                "description": " ".join(recipe.description.split()),
            }
        )
    print_rows(rows, list(rows[0]), options.format)
    return 0


def add_algorithms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for", dest="scenario", metavar="SCENARIO", help='e.g. --for "math problem solving"'
    )
    add_format(parser)
    parser.set_defaults(command=_algorithms)


def _algorithms(options: argparse.Namespace) -> int:
    found, names = RECOMMENDATIONS, list(PRESETS)
    if options.scenario is not None:
        found = recommend(options.scenario)
        names = list(dict.fromkeys(name for row in found for name in row.presets))
    rows = [capabilities(name) for name in names]
    print_rows(rows, list(rows[0]), options.format)
    if options.format == "table":
        print("", *found, sep="\n")
    return 0


def add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=["smollm2"])
    parser.add_argument(
        "directory", nargs="?", type=Path, default=FOLDER, help="where (default: %(default)s)"
    )
    parser.set_defaults(command=_models)


def _models(options: argparse.Namespace) -> int:
    """Write the directory, once. Raises UserError where the package is not installed."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of the libraries that read the file
    new = write_smollm2(options.directory)
    print(f"{options.directory} {'holds' if new else 'held already'} SmolLM2-135M-Instruct")
    return 0
