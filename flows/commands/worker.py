"""``rl-pipeline worker``: what a container or a machine of a shared server runs, as in
infra/compose.yaml and infra/kubernetes.

On the machine of ``make up`` ``flows.local`` does all this, and starts the server too. Prefect is
imported only once its settings are known to be there.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import yaml

from flows.services import ServiceError, answer_of
from schemas.errors import UserError

API_URL, PASSWORD = "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"
SERVER_S = 180.0  # containers start together, and the server makes its tables first
LOOK_S = 1.0
KINDS = ("process", "kubernetes")


def add_worker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=int, help="limit of concurrent runs (default: as it is, 1 at first)"
    )
    parser.add_argument(
        "--type",
        dest="kind",
        choices=KINDS,
        default=KINDS[0],
        help="runs are processes here, or jobs of the Kubernetes that this runs in",
    )
    parser.add_argument(
        "--job-template",
        type=Path,
        metavar="FILE",
        help="YAML of those jobs, with --type kubernetes",
    )
    parser.set_defaults(command=_worker)


def _worker(options: argparse.Namespace) -> int:
    """Become Prefect's worker. Raises UserError as ``prepare`` does."""
    prepare(runs=options.runs, kind=options.kind, job_template=options.job_template)
    become(options.kind)
    return 0


def prepare(*, runs: int | None, kind: str, job_template: Path | None) -> list[str]:
    """Wait for the server, then create pool and automations and deploy the recipes; return their
    names.

    Raises UserError where the settings or the template cannot work, and ServiceError where the
    server does not answer.
    """
    url, password = _settings()
    template = _template(kind, job_template)
    _wait(url, password)
    from flows import deploy

    with deploy.get_client(sync_client=True) as client:
        deploy.ensure_pool(client, runs, kind=kind, template=template)
        deploy.ensure_automations(client)
    return deploy.deploy_all()


def become(kind: str) -> NoReturn:
    """Replace this process by Prefect's worker, so that signals and the exit code are its own."""
    from flows.flow_runs import POOL

    command = ["prefect", "worker", "start", "--pool", POOL, "--type", kind, "--with-healthcheck"]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", *command])


def _settings() -> tuple[str, str]:
    missing = [name for name in (API_URL, PASSWORD) if not os.environ.get(name)]
    if missing:
        raise UserError(
            f"{' and '.join(missing)} not set: a worker needs the server's address, as"
            " http://HOST:4200/api, and its user:password; `make up` starts both on this machine"
        )
    return os.environ[API_URL].rstrip("/"), os.environ[PASSWORD]


def _template(kind: str, path: Path | None) -> dict[str, Any] | None:
    """Return the job template of a file. Raises UserError where one is missing or is none."""
    if (kind == "kubernetes") != (path is not None):
        raise UserError(
            "--job-template FILE goes with --type kubernetes, and with it only; one is"
            " infra/kubernetes/job-template.yaml"
        )
    if path is None:
        return None
    try:
        template = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(
            f"--job-template {path} cannot be read ({error}); give a YAML file"
        ) from None
    if not isinstance(template, dict) or set(template) != {"job_configuration", "variables"}:
        raise UserError(
            f"--job-template {path} needs job_configuration and variables, and nothing else; begin"
            " with infra/kubernetes/job-template.yaml"
        )
    return template


def _wait(url: str, password: str) -> None:
    """Return once the server answers this password. Raises UserError where it refuses it, and
    ServiceError where nothing answers within ``SERVER_S``."""
    end, said = time.monotonic() + SERVER_S, ""
    while time.monotonic() < end:
        status, said = answer_of(f"{url}/version", password)
        if status == 200:
            return
        if status == 401:
            raise UserError(
                f"the Prefect server at {url} refuses the password of {PASSWORD}; give that of the"
                " server, its PREFECT_SERVER_API_AUTH_STRING"
            )
        if status == 403:
            raise UserError(
                f"the Prefect server at {url} refuses this address: {said}; start it with --name"
                f" and the host of {API_URL}"
            )
        time.sleep(LOOK_S)
    raise ServiceError(
        f"the Prefect server at {url} did not answer within {SERVER_S:.0f} s ({said}); start it,"
        f" or set {API_URL} to where it is"
    )
