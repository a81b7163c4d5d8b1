"""``rl-pipeline down``: what ``make down`` does."""

import argparse
from typing import Any


def add_down(commands: Any) -> None:
    """Add the subcommand ``down`` to a command line's subparsers."""
    parser = commands.add_parser("down", help="end worker and server; cancel runs that wait")
    parser.set_defaults(command=_down)


def _down(options: argparse.Namespace) -> int:
    from flows import local

    del options
    ended = local.down(local.HOME)
    print(f"Ended: {', '.join(ended)}." if ended else "Nothing was running.")
    return 0
