"""``rl-pipeline wandb``: one wandb run of what a run recorded, whatever became of the live one."""

import argparse
from typing import Any

from flows.commands.arguments import add_runs_folder
from schemas.errors import UserError


def add_wandb(commands: Any) -> None:
    parser = commands.add_parser("wandb", help="make a wandb run of a run's recorded metrics")
    parser.add_argument("run", metavar="RUN", help="its folder's name, or 'latest'")
    parser.add_argument(
        "--online",
        action="store_true",
        help="send it, with the key of `wandb login` (default: where WANDB_API_KEY is set)",
    )
    add_runs_folder(parser)
    parser.set_defaults(command=rebuild_run)


def rebuild_run(options: argparse.Namespace) -> int:
    """Make the wandb run; print its URL, or its folder and how it is sent."""
    import polars as pl

    from rlcore.results.run import Run
    from tasks.run_page.tracking import STEP_METRICS, rebuild

    run = Run.open(options.run, options.runs)
    flow_run = next(iter(run.stages.values())).flow_run_id
    frames = [run.metrics(stage) for stage in STEP_METRICS if stage in run.stages]
    if not any(frame.height for frame in frames):
        raise UserError(
            f"the run '{run.name}' has no metrics: it has come to {', '.join(run.stages)};"
            f" {', '.join(STEP_METRICS)} record some"
        )
    place, is_online = rebuild(
        run.recipe,
        run.folder,
        run_id=flow_run,
        name=run.name,
        metrics=pl.concat(frames),
        online=options.online,
    )
    print(place if is_online else f"wrote {place}; to send it: wandb sync {place}")
    return 0
