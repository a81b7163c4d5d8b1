"""``rl-pipeline runs``: what was run, finished or not, from the folders that runs leave."""

import argparse
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from flows.commands.arguments import add_runs_folder
from flows.output import add_format, print_rows
from rlcore.results.folders import RECIPE, SUMMARY, flow_run_digits, run_folders

SHOWN = ("run", "state", "iterations", "accuracy", "began")
COLUMNS = ("run", "state", "recipe", "iterations", "accuracy", "began", "ended", "export")
UNFINISHED = "unfinished"


def add_runs(commands: Any) -> None:
    """Add the subcommand ``runs`` to a command line's subparsers."""
    parser = commands.add_parser("runs", help="list the runs: state, accuracy, export")
    add_runs_folder(parser)
    add_format(parser)
    parser.set_defaults(command=_runs)


def _runs(options: argparse.Namespace) -> int:
    rows = run_rows(options.runs)
    if any(row["state"] == UNFINISHED for row in rows):
        known = _known_states()
        for row in rows:
            if row["state"] == UNFINISHED:
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
    import yaml

    rows = []
    for run in run_folders(folder):
        recipe = yaml.load((run / RECIPE).read_text(encoding="utf-8"), yaml.CSafeLoader)
        done = run / SUMMARY
        summary = json.loads(done.read_text(encoding="utf-8")) if done.is_file() else {}
        rows.append(
            {
                "run": run.name,
                "state": "completed" if summary else UNFINISHED,
                "recipe": recipe["name"],
                "iterations": summary.get("iterations"),
                "accuracy": summary.get("accuracy", {}).get("rl"),
                "began": _time(run / RECIPE),
                "ended": _time(done) if summary else None,
                "export": summary.get("export"),
            }
        )
    return rows


def _known_states() -> dict[str, str]:
    """Return what the server, if one is up, says of runs: state by digits."""
    from flows import local

    if not local.attach(local.HOME):
        return {}
    from flows.flow_runs import states

    return states()


def _time(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime).astimezone().isoformat(" ", "seconds")
