"""`rl-pipeline watch`: follow a run from any terminal, whoever started it."""

import argparse
import os
from typing import Any

from schemas.errors import UserError


def add_watch(commands: Any) -> None:
    """Add the subcommand ``watch`` to a command line's subparsers."""
    parser = commands.add_parser("watch", help="follow a run to its table, from any terminal")
    parser.add_argument(
        "run",
        nargs="?",
        default="latest",
        help="its folder in runs/, the beginning of its id, or latest (default: %(default)s)",
    )
    parser.set_defaults(command=watch)


def watch(options: argparse.Namespace) -> int:
    """Follow the run; return 0 when it completed and 1 otherwise.

    Raises UserError when no server is up, or it knows no such run.
    """
    from flows import services
    from flows.local import HOME, ROOT, attach

    foreign = "PREFECT_API_URL" in os.environ  # its worker may be anywhere
    if not attach(HOME):
        raise UserError("no Prefect server of this project is running; `make up` starts it")
    from prefect.settings import PREFECT_UI_URL

    from flows.flow_runs import find_run, is_of_a_terminal, whole
    from flows.follow import follow

    worker = services.find(HOME, "worker")
    run = find_run(options.run)
    owner = whole(run)
    log = None if is_of_a_terminal(owner) else services.log_path(HOME, "worker")
    return follow(
        run.id,
        root=ROOT,
        ui_url=str(PREFECT_UI_URL.value()),
        worker_alive=lambda: foreign or (worker is not None and worker.alive()),
        worker_log=log,
        owner=owner.id,
    )
