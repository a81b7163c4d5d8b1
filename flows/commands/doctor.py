"""``rl-pipeline doctor``: is this machine able to run the pipeline, and what to do where not."""

import argparse
from dataclasses import asdict

from flows import local
from flows.output import add_format, print_rows

COLUMNS = ("check", "state", "found", "remedy")


def add_doctor(parser: argparse.ArgumentParser) -> None:
    add_format(parser)
    parser.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    """Return 1 where something is a problem."""
    from flows.machine import PROBLEM, findings

    found = findings(local.HOME)
    if options.format == "table":
        for one in found:
            print(f"{one.state:8} {one.check}: {one.found}")
            if one.remedy:
                print(f"{'':8} -> {one.remedy}")
    else:
        print_rows([asdict(one) for one in found], COLUMNS, options.format)
    return 1 if any(one.state == PROBLEM for one in found) else 0
