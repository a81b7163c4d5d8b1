"""``rl-pipeline export``: the policy of a run, or of any iteration of it, as a model directory."""

import argparse
import sys
from pathlib import Path
from typing import Any

from flows.commands.arguments import add_runs_folder
from flows.output import progress_on_stderr, tell
from rlcore.results.folders import EXPORTS

SHOWN = 12  # digits of a digest
DIFFERS = 1  # docs/reference/exit_codes.md


def add_export(commands: Any) -> None:
    parser = commands.add_parser(
        "export",
        help="the model after any iteration of a run, also of one that is under way or failed",
    )
    parser.add_argument("run", metavar="RUN", help="a run's folder or 'latest', also while it goes")
    parser.add_argument(
        "--iteration",
        type=int,
        metavar="N",
        help="of RL, 0 being what it began with (default: the best where RL has ended, else the"
        " newest)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"new or empty (default: {EXPORTS}/iteration-N in the run's folder)",
    )
    add_runs_folder(parser)
    parser.set_defaults(command=export)


def export(options: argparse.Namespace) -> int:
    """Export and print where to; return ``DIFFERS`` where the weights are not those recorded.

    Raises UserError for a run or an iteration that there is not, ArtifactError for damage.
    """
    from rlcore.evaluation.run_export import export_run
    from rlcore.results.run import Run
    from rlcore.rl.replay import CreditError, ReplayError

    run = Run.open(options.run, options.runs)
    try:
        with progress_on_stderr():
            done = export_run(run, iteration=options.iteration, out=options.out, log=tell)
    except (ReplayError, CreditError) as difference:
        print(f"differs, and nothing was exported: {difference}", file=sys.stderr)
        return DIFFERS
    judged = "evaluated by its run" if done.evaluated else "not evaluated"
    whose = "the policy of" if done.iteration is None else f"iteration {done.iteration} of"
    print(
        f"Export: {done.directory} ({whose} {run.name}, weights {done.weights[:SHOWN]}, {judged})"
    )
    return 0
