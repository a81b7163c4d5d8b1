"""``rl-pipeline fork``: a run that goes on from a checkpoint of another, with its own settings."""

import argparse
from pathlib import Path
from typing import Any

from flows.commands.run import add_execution, execute
from rlcore.results.folders import RECIPE, RUNS
from schemas.errors import UserError


def add_fork(commands: Any) -> None:
    """Add the subcommand ``fork`` to a command line's subparsers."""
    parser = commands.add_parser(
        "fork", help="a run that goes on from a checkpoint of another, with other settings"
    )
    parser.add_argument(
        "origin",
        metavar="RUN@N",
        help="a run's folder or 'latest', and an iteration of RL whose checkpoint it has",
    )
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="of the run's recipe; rl.iterations counts from the start of RL, N included",
    )
    parser.add_argument(
        "--runs", type=Path, default=RUNS, metavar="FOLDER", help="of runs (default: %(default)s)"
    )
    add_execution(parser)
    parser.set_defaults(command=_fork)


def _fork(options: argparse.Namespace) -> int:
    """Run the recipe of the other run from that checkpoint on; ends the process as ``run`` does.

    Raises UserError, before anything starts, for a run or an iteration that there is not, a
    checkpoint that is gone, and overrides that make another model than that of the checkpoint.
    """
    from rlcore.preflight.fork import check_fits
    from rlcore.preflight.start import check_start
    from rlcore.recipes import load_recipe, parse_override
    from rlcore.results.run import Run
    from rlcore.rl.fork import Fork
    from rlcore.rl.recorded import RecordedIterations
    from schemas.stages import check_stages

    name, at, number = options.origin.rpartition("@")
    if not at or not number.isdecimal():
        raise UserError(f"'{options.origin}' is not of the form RUN@N, e.g. latest@60")
    run = Run.open(name, options.runs)
    recorded = RecordedIterations(
        run.store, run.records("rl"), run.name, total=run.recipe.rl.iterations
    )
    recorded.ref(int(number))
    Fork(f"{recorded.key}@{number}", run.store).check_kept()
    overrides = dict(parse_override(text) for text in options.override)
    overrides["rl.fork"] = f"{recorded.key}@{number}"
    path = run.folder / RECIPE
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    recipe = load_recipe(str(path), overrides, directory=run.folder)
    check_fits(run.recipe, recipe, options.origin, int(number))
    check_stages(recipe, [], options.until)
    check_start(recipe)
    execute(options, str(path), overrides, [])
