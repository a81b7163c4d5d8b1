"""What a shell may complete: besides commands and options, recipes, their keys, and runs."""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import argcomplete
from argcomplete.completers import FilesCompleter

from flows.paths import RECIPES


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell that asks through the environment, and exit."""
    for one in _parsers(parser):
        for action in one._actions:
            if action.dest in COMPLETERS:
                vars(action)["completer"] = COMPLETERS[action.dest]
    argcomplete.autocomplete(parser)


def recipes(prefix: str, **_: Any) -> list[str]:
    """Return the names of the recipes, and the paths of YAML files that begin with ``prefix``."""
    from rlcore.recipes.load import recipe_names

    return [*recipe_names(RECIPES), *FilesCompleter((".yaml", ".yml"))(prefix)]


def overrides(**_: Any) -> list[str]:
    """Return the dotted keys of a recipe, as an override begins."""
    return [f"{key}=" for key in recipe_keys()]


def tables(**_: Any) -> list[str]:
    """Return the names of the tables that can be queried."""
    from schemas.table_list import TABLES, VIEWS

    return [*VIEWS, *TABLES]


def questions(**_: Any) -> list[str]:
    """Return the names of the questions of ``ask``."""
    from rlcore.results.questions import QUESTIONS

    return list(QUESTIONS)


def runs(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the names of the runs in the folder that is given, or in ``runs``."""
    from rlcore.results.folders import LATEST, RUNS, run_names

    folder = getattr(parsed_args, "runs", RUNS)
    return [LATEST, *run_names(folder)] if folder.is_dir() else []


def recipe_keys(**_: Any) -> list[str]:
    """Return the dotted path of every key that a recipe may set, but for those below a name of the
    user's; 0 is any index."""
    from rlcore.recipes import errors as known

    return [path for path in known.recipe_keys() if known.NAMED not in path.split(".")]


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _parsers(below)


# By the name of the argument, in whichever command it is.
COMPLETERS: dict[str, Callable[..., list[str]]] = {
    "recipe": recipes,
    "recipes": recipes,
    "override": overrides,
    "key": recipe_keys,
    "run": runs,
    "question": questions,
    "table": tables,
}
