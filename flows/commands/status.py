"""``rl-pipeline status``: which processes are up, and what they run; with a recipe, what a run of
it would do."""

import argparse
from pathlib import Path
from typing import Any

from flows import local, services
from flows.commands.arguments import add_overrides, add_recipe, recipe_of
from flows.output import add_format, local_time, print_rows
from flows.stage_status import stages_in_store
from rlcore.plan.states import state_lines
from schemas.errors import UserError

STAGE_COLUMNS = ("stage", "state", "step", "causes", "sentence")
COLUMNS = ("what", "state", "since", "pid", "where")
RUNNING = "running"


def add_status(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, nargs="?")
    add_overrides(parser, "e.g. -o rl.iterations=5; may be given many times")
    parser.add_argument(
        "--accept-code", action="store_true", help="as of the run: half-done RL of other code"
    )
    add_format(parser)
    parser.set_defaults(command=_status)


def _status(options: argparse.Namespace) -> int:
    """Return 0 where server and worker are up, 1 where one is not; of a recipe 0."""
    if options.recipe is not None:
        return _stages(options)
    if options.override or options.accept_code:
        raise UserError("-o and --accept-code are of a recipe; name it: rl-pipeline status RECIPE")
    rows = site_rows(local.HOME)
    up = all(row["state"] == RUNNING for row in rows)
    if rows[0]["state"] == RUNNING:
        rows += _run_rows(local.connect(local.HOME).ui_url)
    print_rows(rows, COLUMNS, options.format)
    return 0 if up else 1


def _stages(options: argparse.Namespace) -> int:
    """Print what a run of the recipe would do with each stage, and why.

    Raises UserError where the recipe is wrong, or the store or a file of it cannot be read.
    """
    recipe = recipe_of(options)
    found = stages_in_store(recipe, accept_code=options.accept_code)
    if found.unread:
        raise UserError(
            f"what a run of '{recipe.name}' would do is not known, as the store {recipe.store}, or"
            f" a file that the recipe names, cannot be read: {found.unread}"
        )
    if options.format == "table":
        print("\n".join(state_lines(found.states)))
    else:
        print_rows([state.to_json() for state in found.states], STAGE_COLUMNS, options.format)
    return 0


def site_rows(home: Path) -> list[dict[str, Any]]:
    """Return a row for the server of ``home``, and one for its worker."""
    rows = []
    for name in ("server", "worker"):
        service = services.find(home, name)
        if service is None:
            state = "not running"
        elif name == "server" and not local.healthy(home, service):
            state = "does not answer"
        else:
            state = RUNNING
        address = f"http://{services.HOST}:{service.port}" if service and service.port else None
        rows.append(
            {
                "what": name,
                "state": state,
                "since": service and local_time(service.started_at),
                "pid": service and service.pid,
                "where": address or str(services.log_path(home, name)),
            }
        )
    return rows


def _run_rows(ui_url: str) -> list[dict[str, Any]]:
    """Return a row for each run that has begun and not ended, or waits for the worker."""
    from flows.flow_runs import folder_of, open_runs

    return [
        {
            "what": f"run {folder_of(run)}",
            "state": (run.state_name or "unknown").lower(),
            "since": run.start_time and local_time(run.start_time.timestamp()),
            "pid": int(pid) if (pid := run.infrastructure_pid) and pid.isdecimal() else None,
            "where": f"{ui_url}/runs/flow-run/{run.id}",
        }
        for run in open_runs()
    ]
