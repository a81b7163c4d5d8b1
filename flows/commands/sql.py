"""``rl-pipeline sql`` and ``tables``: query what runs recorded, and what there is to ask for."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flows.commands.arguments import add_store_root, check_store
from flows.output import add_format, print_rows, print_wrapped, tell

if TYPE_CHECKING:
    from rlcore.store.reader import ArtifactReader


def add_sql(commands: Any) -> None:
    parser = commands.add_parser(
        "sql", help="query rollouts, rewards, metrics, lineage with DuckDB"
    )
    parser.add_argument(
        "statement", help='e.g. "select outcome, count(*) from rollouts group by 1"'
    )
    add_store_root(parser)
    parser.add_argument(
        "--rows", type=int, default=40, help="rows of a table shown (default: %(default)s)"
    )
    add_format(parser)
    parser.set_defaults(command=_sql)


def _sql(options: argparse.Namespace) -> int:
    from rlcore.results.queries import answer

    found = answer(readable_store(options.store), options.statement, tell)
    print_answer(found.dicts(), found.columns, options.format, options.rows)
    return 0


def readable_store(root: str) -> "ArtifactReader":
    """Return the store at ``--store``; raises UserError where there is none."""
    from rlcore.store.reader import ArtifactReader

    check_store(root)
    return ArtifactReader(root)


def print_answer(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], form: str, most: int
) -> None:
    """Print the rows of a query, of a table at most ``most`` and how many there are."""
    shown = rows[:most] if form == "table" else rows
    print_rows(shown, columns, form, null="null")
    if len(shown) < len(rows):
        print(
            f"{len(shown)} of {len(rows)} rows; --rows {len(rows)} shows all, --format csv or json"
            " with every value whole",
            file=sys.stderr,
        )


def add_tables(commands: Any) -> None:
    parser = commands.add_parser("tables", help="list the tables of `sql`, or one's columns")
    parser.add_argument("table", nargs="?", metavar="TABLE", help="e.g. rollouts")
    add_format(parser)
    parser.set_defaults(command=tables)


def tables(options: argparse.Namespace) -> int:
    """Print each table with what it holds, or the columns of one with type and meaning."""
    from rlcore.results.queries import describe
    from schemas.table_list import TABLES, VIEWS

    texts, title = {**VIEWS, **TABLES}, ""
    if options.table is None:
        columns, rows = ("table", "holds"), list(texts.items())
    else:
        columns = ("column", "type", "meaning")
        rows = [(one.name, one.type, one.description) for one in describe(options.table)]
        title = f"{options.table}: {texts[options.table]}"
    if options.format == "table":
        print_wrapped(columns, rows, title)
    else:
        print_rows([dict(zip(columns, row, strict=True)) for row in rows], columns, options.format)
    return 0
