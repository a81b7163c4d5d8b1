"""`rl-pipeline rerun`: the recipe of a run once more, with a stage made anew."""

import argparse
from pathlib import Path
from typing import Any

from flows.commands.run import add_execution, execute
from rlcore.results.folders import RECIPE, RUNS


def add_rerun(commands: Any) -> None:
    """Add the subcommand ``rerun`` to a command line's subparsers."""
    parser = commands.add_parser("rerun", help="make a stage of a run anew, and what follows of it")
    parser.add_argument("run", metavar="RUN", help="as `rl-pipeline runs` names it, or 'latest'")
    parser.add_argument(
        "--from",
        dest="stage",
        required=True,
        metavar="STAGE",
        help="is made anew; a later stage is run where what it reads has changed by that",
    )
    parser.add_argument(
        "--runs", type=Path, default=RUNS, metavar="FOLDER", help="of runs (default: %(default)s)"
    )
    add_execution(parser)
    parser.set_defaults(command=_rerun)


def _rerun(options: argparse.Namespace) -> int:
    """Run the recipe that the run recorded; ends the process as ``run`` does.

    Raises UserError for a run that there is not, and a stage that its recipe lacks.
    """
    from rlcore.preflight.start import check_start
    from rlcore.recipes import load_recipe
    from rlcore.results.run import Run
    from schemas.stages import check_stages

    folder = Run.open(options.run, options.runs).folder
    path = folder / RECIPE
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    recipe = load_recipe(str(path), {}, directory=folder)
    check_stages(recipe, [options.stage], options.until, refresh_name="--from")
    check_start(recipe)
    execute(options, str(path), {}, [options.stage])
