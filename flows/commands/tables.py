"""``rl-pipeline tables``: what SQL can ask for, before anything was run."""

import argparse
from typing import Any


def add_tables(commands: Any) -> None:
    """Add the subcommand ``tables`` to a command line's subparsers."""
    parser = commands.add_parser("tables", help="list the tables of `sql`, or one's columns")
    parser.add_argument("table", nargs="?", metavar="TABLE", help="e.g. rollouts")
    parser.set_defaults(command=tables)


def tables(options: argparse.Namespace) -> int:
    """Print each table with what it holds, or the columns of one with type and meaning."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from schemas.columns import TABLES, VIEWS

    texts = {**VIEWS, **TABLES}
    if options.table is None:
        shown = Table("table", "holds", box=SIMPLE_HEAD)
        for name, text in texts.items():
            shown.add_row(name, text)
    else:
        from rlcore.results.data_dictionary import describe

        columns = describe(options.table)
        text = texts[options.table]
        shown = Table(
            "column", "type", "meaning", box=SIMPLE_HEAD, title=f"{options.table}: {text}"
        )
        for column in columns:
            shown.add_row(column.name, column.type, column.description)
    shown.title_justify, shown.title_style = "left", ""
    console = Console(markup=False)
    for column in shown.columns[:-1]:
        column.no_wrap = True
    console.print(shown)
    return 0
