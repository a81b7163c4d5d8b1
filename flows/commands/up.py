"""``rl-pipeline up``: what ``make up`` does once the environment is installed."""

import argparse
import time
from typing import Any


def add_up(commands: Any) -> None:
    """Add the subcommand ``up`` to a command line's subparsers."""
    parser = commands.add_parser("up", help="start Prefect server and worker; deploy the recipes")
    parser.add_argument(
        "--runs", type=int, default=1, help="limit of concurrent runs (default: %(default)s)"
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="of the server, from now on (default: that of the last time, else 4200 or a free one)",
    )
    parser.set_defaults(command=_up)


def _up(options: argparse.Namespace) -> int:
    from flows import local, services

    started = time.monotonic()
    if options.port is not None:
        services.choose_port(local.HOME, options.port)
    try:
        site = local.up(local.HOME, runs=options.runs, env_file=local.ENV_FILE)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(local.STOPPED) from None
    print(f"Up in {time.monotonic() - started:.0f} s: {site.ui_url}")
    print(local.LOGIN_HINT)
    print(f"Deployments: {', '.join(f'rl-pipeline/{name}' for name in site.deployments)}")
    print("Next: prefect deployment run rl-pipeline/quickstart --watch; make down ends it all.")
    return 0
