"""`rl-pipeline run`: a recipe in this process, to its table; or its plan."""

import argparse
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NoReturn

from flows.output import print_json, progress_on_stderr
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
        "--dry-run",
        action="store_true",
        help="print recipe, batch arithmetic, and estimates of what is not in the store yet",
    )
    parser.add_argument(
        "--refresh",
        action="append",
        default=[],
        metavar="STAGE",
        help="make a stage anew; its result before stays in the store; may be given many times",
    )
    add_execution(parser)
    parser.set_defaults(command=run)


def add_execution(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run in this process to its command."""
    parser.add_argument("--until", metavar="STAGE", help="end after this stage")
    parser.add_argument(
        "--accept-code",
        action="store_true",
        help="let an RL run that stopped half-way go on though its code has changed since",
    )
    parser.add_argument(
        "--debug", action="store_true", help="print every log line, and tracebacks of errors"
    )
    parser.add_argument(
        "--format",
        choices=("table", "json"),
        default="table",
        help="of the run's summary; json: all of it, progress on stderr (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Run or plan the recipe; return 0 for a plan.

    A run ends the process: with 0 when it completed (docs/exit_codes.md). Raises UserError, before
    anything starts, for what ``check_start`` refuses.
    """
    from rlcore.preflight.start import check_start
    from rlcore.recipes import load_recipe, parse_override
    from schemas.stages import check_stages

    if options.dry_run and options.format == "json":
        raise UserError("--format json is of a run's summary; leave it out, or --dry-run")
    overrides = dict(parse_override(text) for text in options.override)
    recipe = load_recipe(options.recipe, overrides, directory=RECIPES)
    check_stages(recipe, options.refresh, options.until)
    planned = check_start(recipe)
    if options.dry_run:
        from flows.cached import stages_in_store
        from rlcore.dry_run.plan import render_plan
        from rlcore.origins import Origins

        found = stages_in_store(
            recipe,
            accept_code=options.accept_code,
            refresh=options.refresh,
            until=options.until,
        )
        print(render_plan(replace(planned, in_store=found)))
        origins = Origins(options.recipe, overrides, directory=RECIPES)
        print("Values that differ from the defaults", *origins.lines(), sep="\n  ")
        return 0
    return execute(options, options.recipe, overrides, options.refresh)


def execute(
    options: argparse.Namespace, recipe: str, overrides: dict[str, Any], refresh: list[str]
) -> NoReturn:
    """Run the flow in this process and print its summary; ends the process."""
    with nullcontext() if options.format == "table" else progress_on_stderr():
        if "PREFECT_API_URL" not in os.environ:  # which would name a server of one's own
            from flows import local

            print(f"Prefect server: {local.connect(local.HOME).ui_url}; `make down` ends it.")
        summary = _finished(options, recipe, overrides, refresh)
    if options.format == "json":
        print_json(summary)
    else:
        from flows.summary_table import print_summary

        print_summary(summary)
    _end(0)


def _finished(
    options: argparse.Namespace, recipe: str, overrides: dict[str, Any], refresh: list[str]
) -> dict[str, Any]:
    """Run the flow and return its summary; a run that failed or was cancelled ends this process."""
    from prefect._internal import control_listener
    from prefect.exceptions import TerminationSignal

    from flows.cancelling import end_when_cancelled
    from flows.console import first_line, simplify
    from flows.rl_pipeline import rl_pipeline
    from schemas.stages import Stage

    if not options.debug:
        simplify()
    # A worker sets this intent before it cancels a run; here SIGTERM itself means cancel. Without
    # it Prefect records a crash, and the process ends before the state is reported.
    control_listener._set_intent("cancel")
    pipeline = rl_pipeline.with_options(on_running=[end_when_cancelled])
    try:
        return pipeline(
            recipe=recipe,
            overrides=overrides,
            accept_code=options.accept_code,
            refresh=tuple(Stage(stage) for stage in refresh),
            until=None if options.until is None else Stage(options.until),
        )
    except TerminationSignal as signal:
        again = " (refresh only what it has not made anew yet)" if refresh else ""
        _end(
            128 + signal.signal, f"Cancelled; the same command{again} continues where this run was."
        )
    except UserError as error:
        _end(1, f"error: {error}")  # the recipe was right: what the run met was not
    except Exception as error:
        if options.debug:
            raise
        what = f"{type(error).__name__}: {first_line(str(error))}"
        _end(1, f"error: {what}; its traceback is on the run's page, and here with --debug")


def _end(code: int, sentence: str = "") -> NoReturn:
    """End the process, once Prefect knows, with the sentence as the last line.

    Not by returning: threads that are under way would abort an interpreter that shuts down, or
    print what libraries left in memory after the sentence.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogHandler

    EventsWorker.drain_all(timeout=10)
    APILogHandler().flush()
    sys.stdout.flush()
    if sentence:
        print(sentence, file=sys.stderr, flush=True)
    os._exit(code)
