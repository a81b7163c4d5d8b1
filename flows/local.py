"""Bring-up on one machine: Prefect server, work pool, automation, deployments, worker.

All files are below ``.prefect`` of the project, and everything listens on 127.0.0.1 only. ``up``
writes the settings into ``.env`` (a marked block; other lines are kept), which Prefect reads from
the working directory: ``prefect ...`` in the project finds this server and its password without
exported variables. A second ``up`` reuses what is running. Prefect is imported only after its
settings are in the environment.
"""

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from flows import services
from flows.paths import RECIPES, REPORTS, ROOT
from rlcore.cluster.host_settings import OFF, set_variables
from rlcore.recipes.load import load_recipe, recipe_names
from schemas.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

HOME = ROOT / ".prefect"
ENV_FILE = ROOT / ".env"
ENV_BEGIN = "# written by `make up` of this project: its Prefect server (begin)"
ENV_END = "# written by `make up` of this project (end)"
PORT = 4200  # Prefect's own default
LOGIN_HINT = (
    "The UI asks for a password once: `.venv/bin/rl-pipeline open` logs your browser in; it"
    " is PREFECT_API_AUTH_STRING in .env."
)
STOPPED = "Stopped here; what was started keeps running. `make down` ends it."
SERVER_DEADLINE_S = 120.0
WORKER_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Site:
    """A running bring-up."""

    home: Path
    port: int
    deployments: tuple[str, ...] = ()

    @property
    def ui_url(self) -> str:
        return f"http://{services.HOST}:{self.port}"


def client_settings(home: Path, port: int) -> dict[str, str]:
    """Return the environment that server, worker, flow runs and clients share, with the server's
    password, which must not be stored in a database.

    PREFECT_HOME alone would leave results and the memo store in the user's home. Results are JSON,
    since unpickling would run code of anyone who can write the directory. Heartbeats are sent every
    30 s: the automation that closes dead runs allows four times that.
    """
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "storage"),
        "PREFECT_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "ui"),
        "PREFECT_API_URL": f"http://{services.HOST}:{port}/api",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        # A client that got an answer before waits for a server that went away: 2, 4, 8, ...
        # seconds, about nine minutes in total.
        "PREFECT_CLIENT_MAX_RETRIES": "8",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "rlcore",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        **OFF,
        "PREFECT_API_AUTH_STRING": password(home),
    }


def server_settings(home: Path, port: int) -> dict[str, str]:
    """Return the environment of the server; what it defends against is said in ``flows.server``.

    The UI calls the API by a relative address: the page may be opened as localhost, or through
    ``ssh -L`` on another port.
    """
    return client_settings(home, port) | {
        "PREFECT_SERVER_API_AUTH_STRING": password(home),
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",  # after 90 days
        # `prefect deployment run --watch` shows log lines only with both.
        "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",
        "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{services.HOST}:{port}",
        "PREFECT_UI_API_URL": "/api",
        # Its threads of the database would leave an arena of fragments each.
        "MALLOC_ARENA_MAX": "1",
    }


def password(home: Path) -> str:
    """Return ``user:password`` of this home's server, created on first use (mode 0600)."""
    path = home / "password"
    if not path.exists():
        services.make_private(home)
        services.write_atomically(path, f"admin:{secrets.token_urlsafe(24)}")
    return path.read_text(encoding="utf-8")


def start_server(home: Path = HOME, port: int = PORT, reports: Path = REPORTS) -> services.Service:
    """Return the server of ``home``, started if necessary but not waited for (``wait_healthy``).

    It keeps the port of its last time, to which runs and ``.env`` still point; the first time it
    takes ``port``, or any where that is not free. It serves ``reports``.
    """
    running = services.find(home, "server")
    if running is not None:
        return running
    # Bound here and handed over: until the server could, seconds pass, and another may be faster.
    with services.own_socket(home, port) as listener:
        port, fd = listener.getsockname()[1], listener.fileno()
        command = [sys.executable, "-m", "flows.server", f"--port={port}", f"--fd={fd}"]
        command += ["--reports", str(reports)]
        environment = {**services.without_keys(os.environ), **server_settings(home, port)}
        return services.start(home, "server", command, environment, cwd=ROOT, port=port, fds=[fd])


def wait_healthy(home: Path, server: services.Service) -> None:
    """Return once the server answers. Raises UserError with the log file when it does not."""
    services.wait_ready(
        home, server, lambda: healthy(home, server), SERVER_DEADLINE_S, what="the Prefect server"
    )


def connect(home: Path = HOME) -> Site:
    """Return the server of ``home``, started if necessary, and configure this process to call it;
    call this before importing Prefect, whose settings it sets."""
    with services.locked(home):
        server = start_server(home)
        assert server.port is not None, "a server is started with a port"
        os.environ.update(client_settings(home, server.port))
        wait_healthy(home, server)
    return Site(home, server.port)


def attach(home: Path = HOME) -> bool:
    """Configure this process to call a server that is up: that of PREFECT_API_URL where that is
    set, else that of ``home``. Return whether there is one. Call it before importing Prefect."""
    if "PREFECT_API_URL" in os.environ:
        return True
    server = services.find(home, "server")
    if server is None or server.port is None or not healthy(home, server):
        return False
    os.environ.update(client_settings(home, server.port))
    return True


def up(home: Path = HOME, *, runs: int | None = None, env_file: Path = ENV_FILE) -> Site:
    """Start everything and return its addresses; ``runs``: as of ``deploy.ensure_pool``.

    Sets Prefect's settings in this process's environment, so call it before importing Prefect. A
    second bring-up of ``home`` waits for the first. Raises UserError with the process that it
    waited for.
    """
    with services.locked(home):
        set_variables()  # the worker's environment is this process's
        server = start_server(home)
        assert server.port is not None, "a server is started with a port"
        environment = client_settings(home, server.port)
        _warn_of_other_server(environment["PREFECT_API_URL"])
        os.environ.update(environment)
        wait_healthy(home, server)
        from flows import deploy, flow_runs

        write_env_file(env_file, environment)
        with deploy.get_client(sync_client=True) as client:
            deploy.ensure_pool(client, runs)
            worker = _ensure_worker(home, environment)
            deploy.ensure_automations(client)
        deploy.deploy_all()
        is_there = lambda: flow_runs.worker_reported(worker.started_at)  # noqa: E731
        services.wait_ready(home, worker, is_there, WORKER_DEADLINE_S, what="the Prefect worker")
        return Site(home, server.port, tuple(recipe_names(RECIPES)))


def down(home: Path = HOME) -> list[str]:
    """End worker and server, if they run; return the names of those that ran.

    Runs that wait for the worker are cancelled, as the next worker would start them.
    """
    with services.locked(home):
        server = services.find(home, "server")
        if server is not None and server.port is not None and healthy(home, server):
            called = client_settings(home, server.port)
            from flows import flow_runs

            url, auth = called["PREFECT_API_URL"], called["PREFECT_API_AUTH_STRING"]
            with flow_runs.SyncPrefectClient(url, auth_string=auth) as client:
                flow_runs.cancel_waiting(client, "`make down` ended the worker that it waited for")
        return [name for name in ("worker", "server") if services.stop(home, name)]


def write_env_file(path: Path, environment: Mapping[str, str]) -> None:
    """Put ``environment`` into the marked block of a dotenv file; keep all other lines.

    Users keep keys there, so the file is made readable by its owner only.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if ENV_BEGIN in lines and ENV_END in lines:
        del lines[lines.index(ENV_BEGIN) : lines.index(ENV_END) + 1]
    block = [ENV_BEGIN, *(f'{name}="{value}"' for name, value in environment.items()), ENV_END]
    services.write_atomically(path, "\n".join([*lines, *block]) + "\n")


def _ensure_worker(home: Path, environment: Mapping[str, str]) -> services.Service:
    """Return the running worker, or start one; runs of a worker that died are closed first.

    Runs inherit the worker's environment, so a worker with another environment is replaced when
    idle.
    """
    from flows import flow_runs

    marks = services.marks({**os.environ, **environment}, key=password(home))
    record = home / "worker.environment.json"
    running = services.find(home, "worker")
    if running is not None:
        before = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
        changed = sorted(n for n in {*before, *marks} if before.get(n) != marks.get(n))
        if not changed:
            return running
        if flow_runs.has_active_runs():
            print(
                "A run is active, so the worker keeps the environment that it was started with;"
                f" {', '.join(changed)} changed since. Run `make up` again when the run has ended.",
                file=sys.stderr,
            )
            return running
        services.stop(home, "worker")
    flow_runs.close_orphans("the worker that ran it is gone")
    command = [sys.executable, "-m", "prefect", "worker", "start"]
    command += ["--pool", flow_runs.POOL, "--type", "process", "--name", f"local-{os.getpid()}"]
    services.write_atomically(record, json.dumps(marks))
    return services.start(home, "worker", command, {**os.environ, **environment}, cwd=ROOT)


def healthy(home: Path, server: services.Service) -> bool:
    """Return whether this server answers, and not another one on its port."""
    url = f"http://{services.HOST}:{server.port}/api/version"
    return services.answer_of(url, password(home))[0] == 200


def _warn_of_other_server(api_url: str) -> None:
    other = os.environ.get("PREFECT_API_URL", api_url)
    if other != api_url:
        print(
            f"PREFECT_API_URL is {other} in this shell and overrides .env; `unset PREFECT_API_URL`"
            f" to reach this project's server at {api_url}",
            file=sys.stderr,
        )


def run(site: Site, recipe: str, overrides: dict[str, object], started: float) -> int:
    """Start a run of a recipe's deployment and follow it to its table; return the exit code.

    ``started``: start of the bring-up by ``time.monotonic``. Raises the errors of ``create_run``
    and ``follow``.
    """
    from flows.follow import create_run

    flow_run = create_run(recipe, overrides, known=site.deployments)
    print(f"Up in {time.monotonic() - started:.0f} s. {site.ui_url}/runs/flow-run/{flow_run.id}")
    print(LOGIN_HINT)
    return follow_run(site, flow_run.id)


def follow_run(site: Site, run_id: UUID, console: "Console | None" = None) -> int:
    """Follow a run that the worker of ``site`` executes, as ``follow`` does."""
    from flows.follow import follow

    worker = services.find(site.home, "worker")
    return follow(
        run_id,
        root=ROOT,
        ui_url=site.ui_url,
        worker_alive=lambda: worker is not None and worker.alive(),
        worker_log=services.log_path(site.home, "worker"),
        console=console,
    )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flows.local", description=main.__doc__)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--overrides", default="{}", help="JSON object of dotted paths to values")
    parser.add_argument("--runs", type=int, help="limit of concurrent flow runs")
    return parser.parse_args(arguments)


def _overrides(text: str) -> dict[str, object]:
    """Return what ``--overrides`` holds. Raises UserError where it is no JSON object."""
    try:
        overrides = json.loads(text)
    except json.JSONDecodeError as error:
        overrides = error
    if not isinstance(overrides, dict):
        reason = f" ({overrides})" if isinstance(overrides, Exception) else ""
        raise UserError(
            f'overrides = {text!r} is no JSON object{reason}; write it as {{"rl.iterations": 5}}'
        )
    return overrides


def main(arguments: list[str] | None = None) -> int:
    """Bring everything up, start one flow run of a recipe and follow it to its table; return the
    exit code (docs/reference/exit_codes.md)."""
    from rlcore.plan.preconditions import check_start

    options = _parse(arguments)
    set_variables()
    started = time.monotonic()
    try:
        overrides = _overrides(options.overrides)
        check_start(load_recipe(options.recipe, overrides, directory=RECIPES))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        site = up(HOME, runs=options.runs, env_file=ENV_FILE)
        return run(site, options.recipe, overrides, started)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
