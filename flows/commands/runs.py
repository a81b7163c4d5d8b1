"""``rl-pipeline runs``, ``watch`` and ``stop``: what was run, finished or not, from the folders
that runs leave; following a run from any terminal, whoever started it; cancelling one."""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import yaml

from flows import local, services
from flows.commands.arguments import add_runs_folder
from flows.output import add_format, local_time, print_rows
from rlcore.results.folders import RECIPE, SUMMARY, flow_run_digits, run_folders
from schemas.errors import UserError

SHOWN = ("run", "state", "iterations", "accuracy", "began")
COLUMNS = ("run", "state", "recipe", "iterations", "accuracy", "began", "ended", "export")
UNFINISHED = "unfinished"
PATIENCE_S = 90.0  # with a run that is to stop, which closes its workers first
POLL_S = 0.5


def add_runs(parser: argparse.ArgumentParser) -> None:
    add_runs_folder(parser)
    add_format(parser)
    parser.set_defaults(command=_runs)


def _runs(options: argparse.Namespace) -> int:
    rows = run_rows(options.runs)
    unfinished = [row for row in rows if row["state"] == UNFINISHED]
    known = _known_states() if unfinished else {}
    for row in unfinished:
        row["state"] = known.get(flow_run_digits(row["run"]), UNFINISHED)
    if options.format != "table":
        print_rows(rows, COLUMNS, options.format)
        return 0
    minutes = len("2026-01-31 12:00")
    print_rows([{**row, "began": row["began"][:minutes]} for row in rows], SHOWN, "table")
    exports = [row["export"] for row in rows if row["export"]]
    if exports:
        print(f"Newest export: {exports[0]}")
    return 0


def run_rows(folder: Path) -> list[dict[str, Any]]:
    """Return a row per run below ``folder``, the newest first: what its files say of it."""
    rows = []
    for run in run_folders(folder):
        recipe = yaml.load((run / RECIPE).read_text(encoding="utf-8"), yaml.CSafeLoader)
        done = run / SUMMARY
        summary = json.loads(done.read_text(encoding="utf-8")) if done.is_file() else {}
        accuracy = summary.get("accuracy", {})
        exported = "rl" if recipe.get("rl", {}).get("enabled", True) else "preference"
        rows.append(
            {
                "run": run.name,
                "state": "completed" if summary else UNFINISHED,
                "recipe": recipe["name"],
                "iterations": summary.get("iterations"),
                "accuracy": accuracy.get(exported),
                "began": local_time((run / RECIPE).stat().st_mtime),
                "ended": local_time(done.stat().st_mtime) if summary else None,
                "export": summary.get("export"),
            }
        )
    return rows


def _known_states() -> dict[str, str]:
    """Return what the server, if one is up, says of runs: state by digits."""
    foreign = "PREFECT_API_URL" in os.environ
    if not local.attach(local.HOME):
        return {}
    from flows.flow_runs import states

    return states(of_this_machine=not foreign)


def add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        default="latest",
        help="its folder in runs/, the beginning of its id, or latest (default: %(default)s)",
    )
    parser.set_defaults(command=watch)


def watch(options: argparse.Namespace) -> int:
    """Follow the run; return 0 when it completed and 1 otherwise.

    Raises UserError when no server is up, or it knows no such run.
    """
    foreign = "PREFECT_API_URL" in os.environ  # its worker may be anywhere
    if not local.attach(local.HOME):
        raise UserError("no Prefect server of this project is running; `make up` starts it")
    from prefect.settings import PREFECT_UI_URL

    from flows.flow_runs import find_run, is_of_a_terminal, whole
    from flows.follow import follow

    worker = services.find(local.HOME, "worker")
    run = find_run(options.run)
    owner = whole(run)
    log = None if is_of_a_terminal(owner) else services.log_path(local.HOME, "worker")
    return follow(
        run.id,
        root=local.ROOT,
        ui_url=str(PREFECT_UI_URL.value()),
        worker_alive=lambda: foreign or (worker is not None and worker.alive()),
        worker_log=log,
        owner=owner.id,
    )


def add_stop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="as `rl-pipeline runs` names it, or 'latest'")
    parser.set_defaults(command=_stop)


def _stop(options: argparse.Namespace) -> int:
    foreign = "PREFECT_API_URL" in os.environ  # its processes may be anywhere
    if not local.attach(local.HOME):
        raise UserError(
            f"run '{options.run}' is cancelled through its Prefect server, and none is up;"
            " `make up` starts it, and a run that is still alive reports to it"
        )
    from flows import flow_runs

    run = flow_runs.find_run(options.run)
    name = flow_runs.folder_of(run)
    if run.state is None or run.state.is_final():
        state = (run.state_name or "unknown").lower()
        raise UserError(f"run '{name}' has ended ({state}); there is nothing to stop")
    run = flow_runs.whole(run)
    if not foreign and flow_runs.was_lost(run):
        flow_runs.close(run.id)
        raise UserError(f"run '{name}' has ended (its process is gone); there is nothing to stop")
    flow_runs.cancel(run.id)
    began = time.monotonic()
    while not (now := flow_runs.read(run.id)).state or not now.state.is_final():
        if time.monotonic() - began > PATIENCE_S:
            print(
                f"{name} was asked to end and has not within {PATIENCE_S:.0f} s; `rl-pipeline"
                " status` shows its process"
            )
            return 1
        time.sleep(POLL_S)
    if not now.state.is_cancelled():
        print(f"{name} had ended before it could be cancelled: {now.state.name}")
        return 0
    print(f"Cancelled: {name} (flow run {run.id}), {time.monotonic() - began:.0f} s.")
    print("The same command continues it.")
    return 0
