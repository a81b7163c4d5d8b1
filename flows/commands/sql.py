"""``rl-pipeline sql``: query what runs recorded."""

import argparse
import sys
from pathlib import Path
from typing import Any

from flows.output import add_format, print_rows
from schemas.errors import UserError


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
    from rlcore.results.queries import query
    from rlcore.store.artifacts import ArtifactStore

    if "://" not in options.store and not Path(options.store).is_dir():
        raise UserError(f"--store {options.store}: there is no such folder; a run makes one")
    frame = query(
        ArtifactStore(options.store), options.statement, lambda line: print(line, file=sys.stderr)
    )
    shown = frame.head(options.rows) if options.format == "table" else frame
    print_rows(shown.to_dicts(), shown.columns, options.format, null="null")
    if shown.height < frame.height:
        print(
            f"{shown.height} of {frame.height} rows; --rows {frame.height} shows all, --format csv"
            " or json with every value whole",
            file=sys.stderr,
        )
    return 0
