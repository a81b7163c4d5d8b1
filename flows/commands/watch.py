"""`rl-pipeline watch`: follow a run from any terminal, whoever started it."""

import argparse
from typing import Any

from schemas.errors import UserError

LATEST = "latest"


def add_watch(commands: Any) -> None:
    """Add the subcommand ``watch`` to a command line's subparsers."""
    parser = commands.add_parser("watch", help="follow a run to its table, from any terminal")
    parser.add_argument(
        "run",
        nargs="?",
        default=LATEST,
        help="its folder in runs/, the beginning of its id, or latest (default: %(default)s)",
    )
    parser.set_defaults(command=watch)


def watch(options: argparse.Namespace) -> int:
    """Follow the run; return 0 when it completed and 1 otherwise.

    Raises UserError when no server of this project runs, or it knows no such run.
    """
    from flows import services
    from flows.local import HOME, ROOT, connect

    if services.find(HOME, "server") is None:
        raise UserError("no Prefect server of this project is running; `make up` starts it")
    site = connect()
    from flows.follow import find_run, follow

    worker = services.find(HOME, "worker")
    return follow(
        find_run(options.run).id,
        root=ROOT,
        ui_url=site.ui_url,
        worker_alive=lambda: worker is not None and worker.alive(),
        worker_log=services.log_path(HOME, "worker"),
    )
