"""``rl-pipeline status``: which processes of this project are up, and what they run."""

import argparse
from datetime import datetime
from pathlib import Path
from typing import Any

from flows.output import add_format, print_rows

COLUMNS = ("what", "state", "since", "pid", "where")
RUNNING = "running"


def add_status(commands: Any) -> None:
    """Add the subcommand ``status`` to a command line's subparsers."""
    parser = commands.add_parser("status", help="what is up: server, worker, runs")
    add_format(parser)
    parser.set_defaults(command=_status)


def _status(options: argparse.Namespace) -> int:
    """Return 0 where server and worker are up, 1 where one is not."""
    from flows import local

    rows = site_rows(local.HOME)
    up = all(row["state"] == RUNNING for row in rows)
    if rows[0]["state"] == RUNNING:
        rows += _run_rows(local.connect(local.HOME).ui_url)
    print_rows(rows, COLUMNS, options.format)
    return 0 if up else 1


def site_rows(home: Path) -> list[dict[str, Any]]:
    """Return a row for the server of ``home``, and one for its worker."""
    from flows import services
    from flows.local import healthy

    rows = []
    for name in ("server", "worker"):
        service = services.find(home, name)
        if service is None:
            state = "not running"
        elif name == "server" and not healthy(home, service):
            state = "does not answer"
        else:
            state = RUNNING
        address = f"http://{services.HOST}:{service.port}" if service and service.port else None
        rows.append(
            {
                "what": name,
                "state": state,
                "since": service and _time(service.started_at),
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
            "since": run.start_time and _time(run.start_time.timestamp()),
            "pid": _pid(run.infrastructure_pid),
            "where": f"{ui_url}/runs/flow-run/{run.id}",
        }
        for run in open_runs()
    ]


def _pid(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
