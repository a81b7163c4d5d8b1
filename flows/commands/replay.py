"""``rl-pipeline replay``: recorded iterations made again, and compared with what was recorded."""

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flows.commands.arguments import add_runs_folder
from flows.output import add_format, print_rows, progress_on_stderr, tell
from schemas.errors import UserError

if TYPE_CHECKING:
    from rlcore.rl.records import RecordedIterations
    from schemas.recipe import Recipe

COLUMNS = (
    *("step", "token", "id", "text", "mask", "old", "new", "ref", "ratio", "clip", "kl"),
    *("reward", "value", "returns", "advantage", "weight", "loss", "value_loss"),
)
SHOWN = 12  # digits of a digest
DIFFERS = 1  # docs/reference/exit_codes.md


def add_replay(commands: Any) -> None:
    parser = commands.add_parser(
        "replay", help="make recorded RL iterations again: do their weights come out?"
    )
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
    parser.add_argument(
        "--trajectory",
        metavar="UID",
        help="walk this answer of the iteration (trajectory_id, as in the table rollouts) token by"
        " token through reward, values, advantage and loss",
    )
    add_runs_folder(parser)
    add_format(parser, others="of --trajectory: every token, prompt included")
    parser.set_defaults(command=replay)


def replay(options: argparse.Namespace) -> int:
    """Print a line per iteration; return ``DIFFERS`` where one does not come out as recorded.

    Raises UserError for a run or an iteration that there is not, ArtifactError for damage.
    """
    from rlcore.results.run import Run
    from rlcore.rl.records import RecordedIterations
    from rlcore.rl.replay import CreditError, Replay, ReplayError

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
    if options.trajectory is None and options.format != "table":
        raise UserError(
            f"--format {options.format} is of --trajectory; name an answer, or leave it"
        )
    if options.trajectory is not None and options.first is not None:
        raise UserError("--from and --trajectory exclude each other; leave one out")
    try:
        if options.trajectory is not None:
            return _walk(options, recorded, run.recipe)
        with (
            progress_on_stderr(),
            Replay.open(recorded, run.recipe, start=first - 1, log=tell) as again,
        ):
            while again.at < last:
                step = again.step()
                what = "policy updated" if step.updated else "policy at rest"
                tell(f"iteration {step.iteration}: {step.digest[:SHOWN]}, as recorded, {what}")
    except (ReplayError, CreditError) as difference:
        print(f"differs: {difference}", file=sys.stderr)
        return DIFFERS
    print(f"iterations {again.began + 1} to {last} of {run.name}: weights and credit as recorded")
    return 0


def _walk(options: argparse.Namespace, recorded: "RecordedIterations", recipe: "Recipe") -> int:
    """Print the tokens of one answer; as a table those that were sampled."""
    from rlcore.models.files import model_directory
    from rlcore.models.tokenizer import load_tokenizer
    from rlcore.rl.replay import Replay
    from rlcore.rl.token_trace import walk

    number = options.iteration
    with (
        progress_on_stderr(),
        Replay.open(recorded, recipe, start=number - 1, log=tell) as again,
    ):
        while again.at < number - 1:
            again.step()
        policy = recorded.iteration(recorded.first).manifest.parents["policy"]
        tokenizer = load_tokenizer(model_directory(recorded.store.directory(policy)))
        walked = walk(again, options.trajectory, lambda token: str(tokenizer.decode([token])))
    rows = [asdict(token) for token in walked]
    if options.format == "table":
        rows = [row for row in rows if row["mask"]]
        shown = [name for name in COLUMNS if any(row[name] not in (None, "") for row in rows)]
        print_rows(rows, [name for name in shown if name not in ("mask", "id")], "table")
    else:
        print_rows(rows, COLUMNS, options.format)
    return 0
