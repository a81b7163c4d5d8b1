"""Arguments that several commands take, and the recipe or the store that they name."""

import argparse
from pathlib import Path
from typing import Any

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe, parse_override
from rlcore.results.folders import RUNS
from schemas.errors import UserError
from schemas.recipe import Recipe


def add_recipe(parser: argparse.ArgumentParser, *, nargs: str | None = None) -> None:
    """Add the positional ``recipe``, which ``recipe_of`` loads."""
    parser.add_argument("recipe", nargs=nargs, help="name in flows/recipes, or path of a YAML file")


def add_overrides(parser: argparse.ArgumentParser, text: str = "as in run") -> None:
    """Add ``-o``, which ``overrides_of`` reads; ``text``: its help."""
    parser.add_argument(
        "-o", "--override", action="append", default=[], metavar="PATH=VALUE", help=text
    )


def add_runs_folder(parser: argparse.ArgumentParser) -> None:
    """Add ``--runs``, the folder in which runs are looked for."""
    parser.add_argument(
        "--runs", type=Path, default=RUNS, metavar="FOLDER", help="of runs (default: %(default)s)"
    )


def add_store_root(parser: argparse.ArgumentParser) -> None:
    """Add ``--store``, which ``check_store`` checks."""
    parser.add_argument(
        "--store", default="runs/store", help="artifact store (default: %(default)s)"
    )


def overrides_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of ``-o`` by dotted key. Raises UserError for one that is none."""
    return dict(parse_override(text) for text in options.override)


def recipe_of(options: argparse.Namespace) -> Recipe:
    """Return the recipe that was named, with its overrides. Raises UserError as ``load_recipe``."""
    return load_recipe(options.recipe, overrides_of(options), directory=RECIPES)


def check_store(root: str) -> None:
    """Raise UserError where ``--store`` names a folder that is not there."""
    if "://" not in root and not Path(root).is_dir():
        raise UserError(f"--store {root}: there is no such folder; a run makes one")
