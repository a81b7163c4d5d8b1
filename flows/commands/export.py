"""``rl-pipeline export`` and ``replay``: the policy of any iteration of a run as a model directory;
recorded iterations made again, and compared with what was recorded."""

import argparse
from pathlib import Path

from flows.commands.arguments import add_runs_folder
from flows.output import progress_on_stderr, tell
from rlcore.results.folders import EXPORTS
from rlcore.results.run import Run
from rlcore.rl.records import RecordedIterations
from rlcore.rl.replay import CreditError, Replay, ReplayError
from schemas.errors import UserError

SHOWN = 12  # digits of a digest
DIFFERS = 1  # docs/reference/exit_codes.md


def add_export(parser: argparse.ArgumentParser) -> None:
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

    run = Run.open(options.run, options.runs)
    try:
        with progress_on_stderr():
            done = export_run(run, iteration=options.iteration, out=options.out, log=tell)
    except (ReplayError, CreditError) as difference:
        tell(f"differs, and nothing was exported: {difference}")
        return DIFFERS
    judged = "evaluated by its run" if done.evaluated else "not evaluated"
    whose = "the policy of" if done.iteration is None else f"iteration {done.iteration} of"
    print(
        f"Export: {done.directory} ({whose} {run.name}, weights {done.weights[:SHOWN]}, {judged})"
    )
    return 0


def add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder or 'latest', also while it goes")
    parser.add_argument(
        "iteration",
        metavar="ITERATION",
        type=int,
        help="up to which; it starts from the nearest checkpoint before --from, or from the policy"
        " that RL began with",
    )
    parser.add_argument(
        "--from",
        dest="first",
        metavar="ITERATION",
        type=int,
        help="the first to make again (default: the last alone)",
    )
    add_runs_folder(parser)
    parser.set_defaults(command=replay)


def replay(options: argparse.Namespace) -> int:
    """Print a line per iteration; return ``DIFFERS`` where one does not come out as recorded.

    Raises UserError for a run or an iteration that there is not, ArtifactError for damage.
    """
    run, last = Run.open(options.run, options.runs), options.iteration
    recorded = RecordedIterations(
        run.store, run.records("rl"), run.name, total=run.recipe.rl.iterations
    )
    recorded.iteration(last)
    first = last if options.first is None else options.first
    if not recorded.first < first <= last:
        raise UserError(
            f"replay {run.name} --from {first} up to {last}: iterations to replay are"
            f" {recorded.first + 1} to {recorded.last}, the first not after the last"
        )
    recorded.check_kept(first, last)
    try:
        with (
            progress_on_stderr(),
            Replay.open(recorded, run.recipe, start=first - 1, log=tell) as again,
        ):
            while again.at < last:
                step = again.step()
                what = "policy updated" if step.updated else "policy at rest"
                tell(f"iteration {step.iteration}: {step.digest[:SHOWN]}, as recorded, {what}")
    except (ReplayError, CreditError) as difference:
        tell(f"differs: {difference}")
        return DIFFERS
    print(f"iterations {again.began + 1} to {last} of {run.name}: weights and credit as recorded")
    return 0
