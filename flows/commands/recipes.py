"""``rl-pipeline recipes`` and ``algorithms``: what can be run by name, what each preset needs, and
which one to choose."""

import argparse
from typing import Any

from flows.output import add_format, print_rows
from flows.paths import RECIPES


def add_recipes(commands: Any) -> None:
    parser = commands.add_parser("recipes", help="list the recipes")
    add_format(parser)
    parser.set_defaults(command=_recipes)


def _recipes(options: argparse.Namespace) -> int:
    from rlcore.recipes.load import load_recipe, recipe_names

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


def add_algorithms(commands: Any) -> None:
    parser = commands.add_parser("algorithms", help="what each algorithm needs; which to take")
    parser.add_argument(
        "--for", dest="scenario", metavar="SCENARIO", help='e.g. --for "math problem solving"'
    )
    add_format(parser)
    parser.set_defaults(command=_algorithms)


def _algorithms(options: argparse.Namespace) -> int:
    from rlcore.algorithms.catalogue import RECOMMENDATIONS, capabilities, recommend
    from schemas.presets import PRESETS

    found, names = RECOMMENDATIONS, list(PRESETS)
    if options.scenario is not None:
        found = recommend(options.scenario)
        names = list(dict.fromkeys(name for row in found for name in row.presets))
    rows = [capabilities(name) for name in names]
    print_rows(rows, list(rows[0]), options.format)
    if options.format == "table":
        print("", *found, sep="\n")
    return 0
