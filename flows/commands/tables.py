"""``rl-pipeline tables``: what SQL can ask for, before anything was run."""

import argparse
from collections.abc import Mapping
from typing import Any

from flows.output import add_format, print_rows


def add_tables(commands: Any) -> None:
    """Add the subcommand ``tables`` to a command line's subparsers."""
    parser = commands.add_parser("tables", help="list the tables of `sql`, or one's columns")
    parser.add_argument("table", nargs="?", metavar="TABLE", help="e.g. rollouts")
    add_format(parser)
    parser.set_defaults(command=tables)


def tables(options: argparse.Namespace) -> int:
    """Print each table with what it holds, or the columns of one with type and meaning."""
    from schemas.table_list import TABLES, VIEWS

    texts = {**VIEWS, **TABLES}
    if options.format == "table":
        _print_table(options.table, texts)
    elif options.table is None:
        rows = [{"table": name, "holds": text} for name, text in texts.items()]
        print_rows(rows, ("table", "holds"), options.format)
    else:
        from rlcore.results.queries import describe

        rows = [
            {"column": column.name, "type": column.type, "meaning": column.description}
            for column in describe(options.table)
        ]
        print_rows(rows, ("column", "type", "meaning"), options.format)
    return 0


def _print_table(table: str | None, texts: Mapping[str, str]) -> None:
    """Print it as wide as the terminal, long texts over several lines."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    if table is None:
        shown = Table("table", "holds", box=SIMPLE_HEAD)
        for name, text in texts.items():
            shown.add_row(name, text)
    else:
        from rlcore.results.queries import describe

        columns = describe(table)
        title = f"{table}: {texts[table]}"
        shown = Table("column", "type", "meaning", box=SIMPLE_HEAD, title=title)
        for column in columns:
            shown.add_row(column.name, column.type, column.description)
    shown.title_justify, shown.title_style = "left", ""
    console = Console(markup=False)
    for column in shown.columns[:-1]:
        column.no_wrap = True
    console.print(shown)
