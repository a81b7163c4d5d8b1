"""``rl-pipeline evolve``: a model improves its answers over rounds, beside a majority vote."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from flows.inline import end, run_inline
from flows.output import add_format, print_rows
from flows.places import RECIPES
from rlcore.results.folders import RUNS

if TYPE_CHECKING:
    from prefect import Flow

COLUMNS = ("part", "metric", "data_source", "subset", "value", "low", "high", "problems", "text")
FIGURE, KEPT = "figure", "kept"
SPLITS = ("test", "validation", "train")


def add_evolve(commands: Any) -> None:
    """Add the subcommand ``evolve`` to a command line's subparsers."""
    parser = commands.add_parser(
        "evolve", help="let a model improve its answers over rounds, without an update of weights"
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a Hugging Face directory, a name of the hub, or a run: its export, or its policy"
        " where it has none",
    )
    parser.add_argument("recipe", help="name in flows/recipes, or path of a YAML file")
    parser.add_argument(
        "--split", choices=SPLITS, default="test", help="of the recipe's data (default: test)"
    )
    parser.add_argument("--revision", metavar="COMMIT", help="of the model of the hub")
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="e.g. -o evolve.rounds=3; may be given many times",
    )
    parser.add_argument(
        "--runs", type=Path, default=RUNS, metavar="FOLDER", help="of runs (default: %(default)s)"
    )
    parser.add_argument(
        "--debug", action="store_true", help="print every log line, and tracebacks of errors"
    )
    add_format(parser)
    parser.set_defaults(command=_evolve)


def _evolve(options: argparse.Namespace) -> NoReturn:
    """Run the flow in this process and print its figures; ends the process.

    Raises UserError, before anything starts, for a model or a recipe that cannot be used.
    """
    from rlcore.preflight.start import check_evolve
    from rlcore.recipes import load_recipe, parse_override
    from rlcore.results.model import model_path

    overrides = dict(parse_override(text) for text in options.override)
    recipe = load_recipe(options.recipe, overrides, directory=RECIPES)
    path = model_path(options.model, options.runs)
    check_evolve(recipe)
    found = run_inline(
        _flow,
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


def _flow() -> "Flow[..., Any]":
    from flows.evolve import evolve

    return evolve


def _rows(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for row in found["figures"]:
        yield {
            **dict.fromkeys(COLUMNS),
            "part": FIGURE,
            "metric": row["metric"],
            "data_source": row["data_source"],
            "subset": row["subset"],
            "value": row["value"],
            "low": row["ci_low"],
            "high": row["ci_high"],
            "problems": row["num_prompts"],
        }
    yield {**dict.fromkeys(COLUMNS), "part": KEPT, "text": found["kept"]}


def _print(rows: list[dict[str, Any]]) -> None:
    figures = [row for row in rows if row["part"] == FIGURE]
    several = len({(row["data_source"], row["subset"]) for row in figures}) > 2
    shown = [row for row in figures if several or row["data_source"] != "all"]
    print("Figures, with 95 % intervals:")
    names = ("data_source", "subset", "metric", "value", "low", "high", "problems")
    print_rows(shown, names, "table")
    print("\nKept in the store:", *(row["text"] for row in rows if row["part"] == KEPT))
