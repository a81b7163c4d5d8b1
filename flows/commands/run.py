"""``rl-pipeline run``, ``rerun`` and ``fork``: a recipe in this process, to its table, or its plan;
that of an earlier run with a stage made again, or from one of its checkpoints on."""

import argparse
import shlex
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

from flows.commands.arguments import (
    add_overrides,
    add_recipe,
    add_runs_folder,
    overrides_of,
    recipe_of,
)
from flows.inline import end, run_inline
from flows.output import print_json
from flows.paths import RECIPES
from flows.stage_status import stages_in_store
from flows.summary_table import print_summary
from rlcore.recipes.load import load_recipe
from rlcore.recipes.origins import Origins
from rlcore.results.folders import RECIPE, run_directory
from rlcore.results.run import Run
from rlcore.rl.fork import Fork
from rlcore.rl.records import RecordedIterations
from schemas.errors import UserError
from schemas.recipe import Recipe
from schemas.stages import Stage, check_stages


def add_run(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    add_overrides(parser, "e.g. -o rl.iterations=5; may be given many times")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would run, batches, memory, disk, and what differs from the defaults",
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
        help="make a stage again; its result before stays in the store; may be given many times",
    )
    add_execution(parser)
    parser.set_defaults(command=run)


def add_execution(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run in this process to its command."""
    parser.add_argument("--until", metavar="STAGE", help="end after this stage")
    parser.add_argument(
        "--accept-code",
        action="store_true",
        help="let an RL run that stopped half-way continue though its code has changed since",
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

    A run ends the process: with 0 when it completed (docs/reference/exit_codes.md). Raises
    UserError, before anything starts, for what ``check_start`` refuses.
    """
    from rlcore.plan.preconditions import check_start

    if options.dry_run and options.format == "json":
        raise UserError("--format json is of a run's summary; leave it out, or --dry-run")
    overrides = overrides_of(options)
    recipe = recipe_of(options)
    check_stages(recipe, options.refresh, options.until)
    start = check_start(recipe, call_judges=options.call_judges)
    if options.dry_run:
        from rlcore.plan.dry_run import render_plan

        found = stages_in_store(
            recipe,
            accept_code=options.accept_code,
            refresh=options.refresh,
            until=options.until,
        )
        print(render_plan(start, found))
        origins = Origins(options.recipe, overrides, directory=RECIPES)
        print("Values that differ from the defaults", *origins.lines(), sep="\n  ")
        words = shlex.join(["rl-pipeline", "explain", "rl.algorithm", options.recipe])
        print(f"\nThe others, by section: `{words}`")
        return 0
    return execute(options, options.recipe, overrides, options.refresh)


def execute(
    options: argparse.Namespace, recipe: str, overrides: dict[str, Any], refresh: list[str]
) -> NoReturn:
    """Run the flow in this process and print its summary; ends the process."""
    summary = run_inline(
        partial(resolve_name, "flows.rl_pipeline:rl_pipeline"),
        debug=options.debug,
        quiet=options.format != "table",
        again=" (refresh only what it has not made again yet)" if refresh else "",
        recipe=recipe,
        overrides=overrides,
        accept_code=options.accept_code,
        refresh=tuple(Stage(stage) for stage in refresh),
        until=None if options.until is None else Stage(options.until),
    )
    if options.format == "json":
        print_json(summary)
    else:
        print_summary(summary)
        folder = run_directory(recipe, summary["flow_run_id"])
        print(f"Summary: {(folder / 'summary.json').resolve()}")
    end(0)


def add_rerun(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="as `rl-pipeline runs` names it, or 'latest'")
    parser.add_argument(
        "--from",
        dest="stage",
        required=True,
        metavar="STAGE",
        help="is made again; a later stage is run where what it reads has changed by that",
    )
    add_runs_folder(parser)
    add_execution(parser)
    parser.set_defaults(command=_rerun)


def _rerun(options: argparse.Namespace) -> int:
    """Run the recipe that the run recorded; ends the process as ``run`` does.

    Raises UserError for a run that there is not, and a stage that its recipe lacks.
    """
    from rlcore.plan.preconditions import check_start

    path, recipe = _recorded(Run.open(options.run, options.runs), {})
    check_stages(recipe, [options.stage], options.until, refresh_name="--from")
    check_start(recipe)
    execute(options, path, {}, [options.stage])


def _recorded(run: Run, overrides: dict[str, Any]) -> tuple[str, Recipe]:
    """Return the path, from here, of the recipe that ``run`` recorded, and the recipe itself."""
    path = run.folder / RECIPE
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return str(path), load_recipe(str(path), overrides, directory=run.folder)


def add_fork(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "origin",
        metavar="RUN@N",
        help="a run's folder or 'latest', and an iteration of RL whose checkpoint it has",
    )
    add_overrides(
        parser, "of the run's recipe; rl.iterations counts from the start of RL, N included"
    )
    add_runs_folder(parser)
    add_execution(parser)
    parser.set_defaults(command=_fork)


def _fork(options: argparse.Namespace) -> int:
    """Run the recipe of the other run from that checkpoint on; ends the process as ``run`` does.

    Raises UserError, before anything starts, for a run or an iteration that there is not, a
    checkpoint that is gone, and overrides that make another model than that of the checkpoint.
    """
    from rlcore.plan.preconditions import check_fits, check_start

    name, at, number = options.origin.rpartition("@")
    if not at or not number.isdecimal():
        raise UserError(f"'{options.origin}' is not of the form RUN@N, e.g. latest@60")
    run = Run.open(name, options.runs)
    recorded = RecordedIterations(
        run.store, run.records("rl"), run.name, total=run.recipe.rl.iterations
    )
    recorded.ref(int(number))
    Fork(f"{recorded.key}@{number}", run.store).check_kept()
    overrides = {**overrides_of(options), "rl.fork": f"{recorded.key}@{number}"}
    path, recipe = _recorded(run, overrides)
    check_fits(run.recipe, recipe, options.origin, int(number))
    check_stages(recipe, [], options.until)
    check_start(recipe)
    execute(options, path, overrides, [])
