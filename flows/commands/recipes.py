"""``rl-pipeline recipes``: what can be run by name."""

import argparse
from typing import Any

from flows.output import add_format, print_rows
from flows.places import RECIPES


def add_recipes(commands: Any) -> None:
    """Add the subcommand ``recipes`` to a command line's subparsers."""
    parser = commands.add_parser("recipes", help="list the recipes")
    add_format(parser)
    parser.set_defaults(command=_recipes)


def _recipes(options: argparse.Namespace) -> int:
    from rlcore.recipes import load_recipe, recipe_names

    rows = []
    for name in recipe_names(RECIPES):
        recipe = load_recipe(name, directory=RECIPES)
        rows.append(
            {
                "recipe": name,
                "preset": recipe.rl.preset,
                "iterations": recipe.rl.iterations,
                "description": " ".join(recipe.description.split()),
            }
        )
    print_rows(rows, list(rows[0]), options.format)
    return 0
