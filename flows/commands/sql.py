"""``rl-pipeline sql``: query what runs recorded."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.output import add_format, print_rows
from schemas.errors import UserError

if TYPE_CHECKING:
    from rlcore.store.reader import ArtifactReader


def add_sql(commands: Any) -> None:
    """Add the subcommand ``sql`` to a command line's subparsers."""
    parser = commands.add_parser(
        "sql", help="query rollouts, rewards, metrics, lineage with DuckDB"
    )
    parser.add_argument(
        "statement", help='e.g. "select outcome, count(*) from rollouts group by 1"'
    )
    parser.add_argument(
        "--store", default="runs/store", help="artifact store (default: %(default)s)"
    )
    parser.add_argument(
        "--rows", type=int, default=40, help="rows of a table shown (default: %(default)s)"
    )
    add_format(parser)
    parser.set_defaults(command=_sql)


def _sql(options: argparse.Namespace) -> int:
    from rlcore.results.queries import answer

    found = answer(
        readable_store(options.store),
        options.statement,
        lambda line: print(line, file=sys.stderr),
    )
    print_answer(found.dicts(), found.columns, options.format, options.rows)
    return 0


def readable_store(root: str) -> "ArtifactReader":
    """Return the store at ``--store``; raises UserError where there is none."""
    from rlcore.store.reader import ArtifactReader

    if "://" not in root and not Path(root).is_dir():
        raise UserError(f"--store {root}: there is no such folder; a run makes one")
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
