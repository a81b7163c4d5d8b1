"""``rl-pipeline up``, ``down``, ``open`` and ``deploy``: this project's Prefect server and worker,
and a deployment for the user's own recipe, wherever its file is."""

import argparse
import os
import sys
import time
import webbrowser
from pathlib import Path
from typing import Any, cast

from flows import local, services
from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError


def add_up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=int, help="limit of concurrent runs (default: as it is, 1 at first)"
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="of the server, from now on (default: that of the last time, else 4200 or a free one)",
    )
    parser.set_defaults(command=_up)


def _up(options: argparse.Namespace) -> int:
    started = time.monotonic()
    if options.port is not None:
        services.choose_port(local.HOME, options.port)
    try:
        site = local.up(local.HOME, runs=options.runs, env_file=local.ENV_FILE)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(local.STOPPED) from None
    print(f"Up in {time.monotonic() - started:.0f} s: {site.ui_url}")
    print(local.LOGIN_HINT)
    print(f"Deployments: {', '.join(f'rl-pipeline/{name}' for name in site.deployments)}")
    print("Next: prefect deployment run rl-pipeline/quickstart --watch; make down ends it all.")
    return 0


def add_down(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_down)


def _down(options: argparse.Namespace) -> int:
    del options
    ended = local.down(local.HOME)
    print(f"Ended: {', '.join(ended)}." if ended else "Nothing was running.")
    return 0


def add_open(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_open)


def _open(options: argparse.Namespace) -> int:
    """Print a login link, and open it where this process has a display."""
    del options
    if services.find(local.HOME, "server") is None:
        raise UserError("no Prefect server of this project runs; `make up` starts it")
    site = local.connect()
    link = login_link(site)
    print(link)
    print(
        f"It works once, for five minutes. From another machine: ssh -L 8000:127.0.0.1:{site.port}"
        " HOST, and open the same path at http://localhost:8000."
    )
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(link)
    return 0


def login_link(site: local.Site) -> str:
    """Return a link that logs the browser that opens it into the UI, once and within 5 minutes."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        # The client's type covers Prefect's own routes only.
        reply = cast(Any, client).request("POST", "/login-links")
    return site.ui_url + reply.json()["path"]


def add_deploy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, help="path of a YAML file")
    parser.set_defaults(command=deploy)


def deploy(options: argparse.Namespace) -> int:
    """Bring everything up, deploy the recipe, say how to run it; return 0.

    Raises UserError as ``load_recipe`` does, before anything is started.
    """
    section = load_recipe(str(options.recipe), directory=RECIPES).retrain
    local.up()
    from flows.deploy import deploy_own
    from flows.retrain import retrain
    from flows.rl_pipeline import rl_pipeline

    name = deploy_own(rl_pipeline, options.recipe, retrain)
    folder = options.recipe.expanduser().resolve().parent
    print(f"Deployed rl-pipeline/{name}; its runs import modules from {folder}.")
    if section is not None:
        when = f"at '{section.cron}' ({section.timezone})" if section.cron else "by hand"
        print(f"Deployed retrain/{name}, which runs {when}.")
    print(f"Next: prefect deployment run rl-pipeline/{name} --watch")
    return 0
