"""`rl-pipeline run`: a recipe in this process, to its table; or its plan."""

import argparse
import os
import sys
from typing import Any

from flows.places import RECIPES
from schemas.errors import UserError


def add_run(commands: Any) -> None:
    """Add the subcommand ``run`` to a command line's subparsers."""
    parser = commands.add_parser("run", help="run a recipe in this process, or plan it")
    parser.add_argument("recipe", help="name in flows/recipes, or path of a YAML file")
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="e.g. -o rl.iterations=5; may be given many times",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print recipe, batch arithmetic and estimates only"
    )
    parser.add_argument(
        "--accept-code",
        action="store_true",
        help="let an RL run that stopped half-way go on though its code has changed since",
    )
    parser.add_argument(
        "--debug", action="store_true", help="print every log line, and tracebacks of errors"
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Run or plan the recipe; return 0 when it completed, 1 after an error that is not the user's.

    Raises UserError, without a traceback, for what the user can change.
    """
    from rlcore.recipes import load_recipe, parse_override

    overrides = dict(parse_override(text) for text in options.override)
    recipe = load_recipe(options.recipe, overrides, directory=RECIPES)
    if options.dry_run:
        from rlcore.dry_run.plan import plan, render_plan
        from rlcore.rewards.registry import check_recipe_functions

        check_recipe_functions(recipe)
        print(render_plan(plan(recipe)))
        return 0
    if "PREFECT_API_URL" not in os.environ:  # which would name a server of one's own
        from flows import local

        print(f"Prefect server: {local.connect(local.HOME).ui_url}; `make down` ends it.")
    try:
        summary = _execute(options, overrides)
    except UserError:
        raise
    except Exception as error:
        if options.debug:
            raise
        what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        print(
            f"error: {what}; its traceback is on the run's page, and here with --debug",
            file=sys.stderr,
        )
        return 1
    from flows.summary_table import print_summary

    print_summary(summary)
    return 0


def _execute(options: argparse.Namespace, overrides: dict[str, Any]) -> dict[str, Any]:
    """Run the flow; SIGTERM cancels it and ends this process."""
    from prefect._internal import control_listener
    from prefect.events.worker import EventsWorker
    from prefect.exceptions import TerminationSignal
    from prefect.logging.handlers import APILogHandler

    from flows.console import simplify
    from flows.rl_pipeline import rl_pipeline

    if not options.debug:
        simplify()
    # A worker sets this intent before it cancels a run; here SIGTERM itself means cancel. Without
    # it Prefect records a crash, and the process ends before the state is reported.
    control_listener._set_intent("cancel")
    try:
        return rl_pipeline(
            recipe=options.recipe, overrides=overrides, accept_code=options.accept_code
        )
    except TerminationSignal as signal:
        print("Cancelled; the same command continues where this run was.", file=sys.stderr)
        EventsWorker.drain_all(timeout=10)
        APILogHandler().flush()
        sys.stderr.flush()
        os._exit(128 + signal.signal)  # Ray's threads would abort a process that ends otherwise
