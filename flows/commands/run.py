"""`rl-pipeline run`: a recipe in this process, to its table; or its plan."""

import argparse
from typing import TYPE_CHECKING, Any, NoReturn

from flows.inline import end, run_inline
from flows.output import print_json
from flows.places import RECIPES
from schemas.errors import UserError

if TYPE_CHECKING:
    from prefect import Flow


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
        "--call-judges",
        action="store_true",
        help="ask each judge of the reward about one row before anything starts; it may charge",
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
    start = check_start(recipe, call_judges=options.call_judges)
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
        print(render_plan(start, found))
        origins = Origins(options.recipe, overrides, directory=RECIPES)
        print("Values that differ from the defaults", *origins.lines(), sep="\n  ")
        return 0
    return execute(options, options.recipe, overrides, options.refresh)


def execute(
    options: argparse.Namespace, recipe: str, overrides: dict[str, Any], refresh: list[str]
) -> NoReturn:
    """Run the flow in this process and print its summary; ends the process."""
    from schemas.stages import Stage

    summary = run_inline(
        _pipeline,
        debug=options.debug,
        quiet=options.format != "table",
        again=" (refresh only what it has not made anew yet)" if refresh else "",
        recipe=recipe,
        overrides=overrides,
        accept_code=options.accept_code,
        refresh=tuple(Stage(stage) for stage in refresh),
        until=None if options.until is None else Stage(options.until),
    )
    if options.format == "json":
        print_json(summary)
    else:
        from flows.summary_table import print_summary

        print_summary(summary)
    end(0)


def _pipeline() -> "Flow[..., Any]":
    from flows.rl_pipeline import rl_pipeline

    return rl_pipeline
