"""``rl-pipeline worker``: what a container or a machine of a shared server runs."""

import argparse
from pathlib import Path
from typing import Any

KINDS = ("process", "kubernetes")


def add_worker(commands: Any) -> None:
    """Add the subcommand ``worker`` to a command line's subparsers."""
    parser = commands.add_parser(
        "worker", help="deploy the recipes on the server of PREFECT_API_URL, and run them for it"
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="limit of concurrent runs (default: %(default)s)"
    )
    parser.add_argument(
        "--type",
        dest="kind",
        choices=KINDS,
        default=KINDS[0],
        help="runs are processes here, or jobs of the Kubernetes that this runs in",
    )
    parser.add_argument(
        "--job-template",
        type=Path,
        metavar="FILE",
        help="YAML of those jobs, with --type kubernetes",
    )
    parser.set_defaults(command=_worker)


def _worker(options: argparse.Namespace) -> int:
    """Become Prefect's worker. Raises UserError as ``prepare`` does."""
    from flows.worker import become, prepare

    prepare(runs=options.runs, kind=options.kind, job_template=options.job_template)
    become(options.kind)
    return 0
