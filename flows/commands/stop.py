"""``rl-pipeline stop``: cancel a run, and say how it goes on."""

import argparse
import json
import shlex
import time
from typing import TYPE_CHECKING, Any

from flows.form import FIELDS, with_fields
from schemas.errors import UserError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

PATIENCE_S = 90.0  # a run closes its workers first
POLL_S = 0.5


def add_stop(commands: Any) -> None:
    """Add the subcommand ``stop`` to a command line's subparsers."""
    parser = commands.add_parser("stop", help="cancel a run; the same command continues it")
    parser.add_argument("run", metavar="RUN", help="as `rl-pipeline runs` names it, or 'latest'")
    parser.set_defaults(command=_stop)


def _stop(options: argparse.Namespace) -> int:
    from flows import local

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
    print(f"The same command continues it: {command_of(run, flow_runs.deployment_of(run))}")
    return 0


def command_of(run: "FlowRun", deployment: str | None) -> str:
    """Return the command that starts what ``run`` is, as one line of a shell; ``deployment``:
    FLOW/NAME of that which made it."""
    recipe, overrides = run.parameters["recipe"], run.parameters.get("overrides") or {}
    given = {name: run.parameters.get(name) for name in ("refresh", "until")}
    fields = {name: run.parameters.get(name) for name in FIELDS}
    if deployment is not None:
        words = ["prefect", "deployment", "run", deployment, "--watch"]
        for name, value in {"overrides": overrides, **given}.items():
            words += ["-p", f"{name}={json.dumps(value)}"] if value else []
        for name, value in fields.items():
            words += ["-p", f"{name}={json.dumps(value)}"] if value is not None else []
    else:
        words = ["rl-pipeline", "run", recipe]
        for path, value in with_fields(overrides, fields).items():
            words += ["-o", f"{path}={json.dumps(value)}"]
        words += ["--accept-code"] if run.parameters.get("accept_code") else []
        words += [word for stage in given["refresh"] or () for word in ("--refresh", stage)]
        words += ["--until", given["until"]] if given["until"] else []
    return shlex.join(words)
