"""``rl-pipeline export``: the policy of a run, or of any iteration of it, as a model directory."""

import argparse
import sys
from pathlib import Path
from typing import Any

from flows.output import progress_on_stderr
from rlcore.results.folders import EXPORTS, RUNS

SHOWN = 12  # digits of a digest
DIFFERS = 1  # docs/exit_codes.md


def add_export(commands: Any) -> None:
    """Add the subcommand ``export`` to a command line's subparsers."""
    parser = commands.add_parser(
        "export", help="the model after any iteration of a run, also of one that goes on or failed"
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
    parser.add_argument(
        "--runs", type=Path, default=RUNS, metavar="FOLDER", help="of runs (default: %(default)s)"
    )
    parser.set_defaults(command=export)


def export(options: argparse.Namespace) -> int:
    """Export and print where to; return ``DIFFERS`` where the weights are not those recorded.

    Raises UserError for a run or an iteration that there is not, ArtifactError for damage.
    """
    from rlcore.export.run import export_run
    from rlcore.results.run import Run
    from rlcore.rl.credit import CreditError
    from rlcore.rl.replay import ReplayError

    run = Run.open(options.run, options.runs)
    try:
        with progress_on_stderr():
            done = export_run(run, iteration=options.iteration, out=options.out, log=_note)
    except (ReplayError, CreditError) as difference:
        print(f"differs, and nothing was exported: {difference}", file=sys.stderr)
        return DIFFERS
    judged = "evaluated by its run" if done.evaluated else "not evaluated"
    print(
        f"Export: {done.directory} (iteration {done.iteration} of {run.name}, weights"
        f" {done.weights[:SHOWN]}, {judged})"
    )
    return 0


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
