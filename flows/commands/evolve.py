"""``rl-pipeline evolve``: a model improves its answers over rounds, beside a majority vote."""

import argparse
from collections.abc import Iterator
from functools import partial
from pkgutil import resolve_name
from typing import Any, NoReturn

from flows.commands.arguments import (
    add_overrides,
    add_recipe,
    add_runs_folder,
    overrides_of,
    recipe_of,
)
from flows.commands.evaluate import FIGURE, KEPT, MODEL, add_split, figure_of, worth_showing
from flows.inline import end, run_inline
from flows.output import add_format, print_rows
from rlcore.results.named_artifacts import model_path

COLUMNS = ("part", "metric", "data_source", "subset", "value", "low", "high", "problems", "text")


def add_evolve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    add_recipe(parser)
    add_split(parser)
    parser.add_argument("--revision", metavar="COMMIT", help="of the model of the hub")
    add_overrides(parser, "e.g. -o evolve.rounds=3; may be given many times")
    add_runs_folder(parser)
    parser.add_argument(
        "--debug", action="store_true", help="print every log line, and tracebacks of errors"
    )
    add_format(parser)
    parser.set_defaults(command=_evolve)


def _evolve(options: argparse.Namespace) -> NoReturn:
    """Run the flow in this process and print its figures; ends the process.

    Raises UserError, before anything starts, for a model or a recipe that cannot be used.
    """
    from rlcore.plan.preconditions import check_evolve

    overrides = overrides_of(options)
    recipe = recipe_of(options)
    path = model_path(options.model, options.runs)
    check_evolve(recipe)
    found = run_inline(
        partial(resolve_name, "flows.evolve:evolve"),
        debug=options.debug,
        quiet=True,
        model=path,
        recipe=options.recipe,
        split=options.split,
        overrides=overrides,
        revision=options.revision,
    )
    rows = list(_rows(found))
    if options.format != "table":
        print_rows(rows, COLUMNS, options.format)
    else:
        _print(rows)
    end(0)


def _rows(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for row in found["figures"]:
        figure = {"part": FIGURE, "problems": row["num_prompts"], **figure_of(row)}
        yield {**dict.fromkeys(COLUMNS), **figure}
    yield {**dict.fromkeys(COLUMNS), "part": KEPT, "text": found["kept"]}


def _print(rows: list[dict[str, Any]]) -> None:
    shown = worth_showing([row for row in rows if row["part"] == FIGURE])
    print("Figures, with 95 % intervals:")
    names = ("data_source", "subset", "metric", "value", "low", "high", "problems")
    print_rows(shown, names, "table")
    print("\nKept in the store:", *(row["text"] for row in rows if row["part"] == KEPT))
