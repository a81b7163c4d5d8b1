"""``make up`` from nothing and again: one server, one worker, one deployment per recipe."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows import services
from flows.local import ENV_BEGIN, ROOT, down, password, server_settings, write_env_file
from flows.paths import RECIPES
from tests.strangers import reachable_by_others

pytestmark = pytest.mark.timeout(300)

RECIPE_NAMES = sorted(path.stem for path in RECIPES.glob("[!_]*.yaml"))
FOLLOW = """
import sys
from pathlib import Path
from flows import local
local.HOME, local.ENV_FILE = map(Path, sys.argv[1:])
from flows.cli import main
assert main(["up"]) == 0
assert main(["status"]) == 0
from flows.follow import create_run, follow
run = create_run("quickstart", {"rl.iteratons": 1})
sys.exit(follow(run.id, root=Path.cwd(), ui_url=local.connect(local.HOME).ui_url))
"""
RUN = """
import sys
from pathlib import Path
from flows import local
local.HOME = Path(sys.argv[1])
from flows.cli import main
# What a filter leaves is known only when the stage has read the data: the run has started.
sys.exit(main(["run", "quickstart", "-o", "store=" + sys.argv[2],
    "-o", "data.filters=[length(ground_truth) > 99]"]))
"""
WAITING = """
import sys
from pathlib import Path
from flows import local, services
from flows.cli import main
local.HOME = home = Path(sys.argv[1])
services.stop(home, "worker")
local.connect(home)
from flows.follow import create_run
run = create_run("quickstart")
assert main(["down"]) == 0
print(run.id)
"""
STATE = """
import sys
from pathlib import Path
from flows import local
local.connect(Path(sys.argv[1]))  # on another port, where the old one is taken meanwhile
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    print(client.read_flow_run(sys.argv[2]).state_name)
"""
UP = """
import json, sys
from pathlib import Path
from flows.local import up
site = up(Path(sys.argv[1]), env_file=Path(sys.argv[2]), runs=2)
print(json.dumps([site.port, site.deployments]))
"""


def environment() -> dict[str, str]:
    """Return the environment of a shell that knows nothing of any server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}


def python(
    code: str, *arguments: str, cwd: Path = ROOT, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` as such a shell would, with the variables ``extra`` besides."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={**environment(), **(extra or {})},
        capture_output=True,
        text=True,
        timeout=600,
    )


@dataclass
class _BroughtUp:
    home: Path
    env_file: Path
    port: int
    deployments: list[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_BroughtUp]:
    """A bring-up of its own, from nothing, while another program listens on Prefect's port."""
    folder = tmp_path_factory.mktemp("site")
    home, env_file = folder / ".prefect", folder / ".env"
    with socket.socket() as other:
        # A server that ended a moment ago keeps the port from who does not ask for it so.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind((services.HOST, 4200))
            other.listen()
        except OSError:
            pass  # some other program listens there already, which serves as well
        result = python(UP, str(home), str(env_file))
    try:
        assert result.returncode == 0, result.stderr
        port, deployments = json.loads(result.stdout.strip().splitlines()[-1])
        yield _BroughtUp(home, env_file, port, deployments)
    finally:
        down(home)


@pytest.mark.slow
def test_every_recipe_is_deployed_beside_a_foreign_server(site: _BroughtUp) -> None:
    assert site.port != 4200
    assert site.deployments == RECIPE_NAMES


@pytest.mark.slow
def test_runs_are_started_at_full_priority(site: _BroughtUp) -> None:
    """A run inherits its worker's, and only root could raise it again."""
    worker = services.find(site.home, "worker")
    assert worker is not None
    assert psutil.Process(worker.pid).nice() == os.nice(0)


@pytest.mark.slow
def test_prefect_finds_the_server_through_the_dotenv_file(site: _BroughtUp) -> None:
    """``prefect deployment run`` in the project must need no exported variable."""
    result = subprocess.run(
        [sys.executable, "-m", "prefect", "deployment", "ls"],
        cwd=site.env_file.parent,
        env={**environment(), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    for name in RECIPE_NAMES:
        assert f"rl-pipeline/{name}" in result.stdout


@pytest.mark.slow
def test_second_up_reuses_what_runs_and_a_wrong_key_ends_in_a_sentence(site: _BroughtUp) -> None:
    before = [services.find(site.home, name) for name in ("server", "worker")]
    assert None not in before
    result = python(FOLLOW, str(site.home), str(site.env_file))
    after = [services.find(site.home, name) for name in ("server", "worker")]
    assert after == before
    assert result.returncode == 1, result.stdout + result.stderr
    assert "rl.iteratons" in result.stdout
    assert "did you mean 'iterations'" in result.stdout or "'rl.iterations'" in result.stdout
    assert "Traceback" not in result.stdout
    for name in RECIPE_NAMES:
        assert f"rl-pipeline/{name}" in result.stdout, "`up` names what was deployed"
    shown = [line.split()[:2] for line in result.stdout.splitlines()]
    assert ["server", "running"] in shown
    assert ["worker", "running"] in shown


@pytest.mark.slow
def test_the_password_is_in_two_files_readable_by_their_owner_only(site: _BroughtUp) -> None:
    """Neither in the database, where every deployment's variables are, nor in a log."""
    secret = password(site.home).encode()
    folder = site.home.parent
    holders = {path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()}
    assert holders == {site.home / "password", site.env_file}
    for path in holders:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.slow
def test_no_other_user_reads_what_the_server_writes(site: _BroughtUp) -> None:
    """The secret path of a report is in database and log, and the report needs no password."""
    assert list(reachable_by_others(site.home)) == []
    assert list(reachable_by_others(site.env_file)) == []
    written = [*site.home.glob("prefect.db*"), *(site.home / "logs").iterdir()]
    assert len(written) >= 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}


@pytest.mark.slow
def test_a_run_where_no_server_is_up_starts_this_one(tmp_path: Path) -> None:
    """Prefect's own temporary server asks for no password."""
    home = tmp_path / ".prefect"
    try:
        result = python(RUN, str(home), str(tmp_path / "store"))
        assert result.returncode != 0
        assert "loosen data.filters" in result.stdout + result.stderr
        server = services.find(home, "server")
        assert server is not None, result.stdout + result.stderr
        assert f"127.0.0.1:{server.port}" in result.stdout
        assert list(reachable_by_others(tmp_path / "store")) == []
    finally:
        down(home)


@pytest.mark.slow
def test_bring_ups_at_once_are_one_and_outlive_their_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers on one database, a worker that polls a port nobody serves, a forgotten run."""
    home, env_file = tmp_path / ".prefect", tmp_path / ".env"
    arguments = [sys.executable, "-c", UP, str(home), str(env_file)]
    try:
        both = [
            subprocess.Popen(arguments, cwd=ROOT, env=environment(), stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        said = [process.communicate(timeout=240)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0]
        (port,) = {json.loads(text.splitlines()[-1])[0] for text in said}
        server = services.find(home, "server")
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)
        again = python(UP, str(home), str(env_file))
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout.splitlines()[-1])[0] == port
        worker = services.find(home, "worker")
        same = python(UP, str(home), str(env_file))
        assert same.returncode == 0, same.stderr
        assert services.find(home, "worker") == worker
        monkeypatch.setenv("WANDB_API_KEY", "set-later")
        keyed = python(UP, str(home), str(env_file))
        assert keyed.returncode == 0, keyed.stderr
        assert services.find(home, "worker") not in (worker, None), "its runs would lack the key"
        assert b"set-later" not in (home / "worker.environment.json").read_bytes()
        waited = python(WAITING, str(home))
        assert waited.returncode == 0, waited.stderr
        result = python(STATE, str(home), waited.stdout.split()[-1])
        assert result.returncode == 0, result.stderr
        assert result.stdout.split()[-1] == "Cancelled"
    finally:
        down(home)


def test_all_files_are_below_the_home(prefect_server: str) -> None:
    """PREFECT_HOME alone leaves results and memo store in the user's home."""
    from prefect.settings import get_current_settings

    settings: Any = get_current_settings()
    home = Path(os.environ["PREFECT_HOME"])
    assert settings.home == home
    assert settings.results.local_storage_path.is_relative_to(home)
    assert settings.server.memo_store_path.is_relative_to(home)
    assert settings.results.default_serializer == "json"
    assert settings.server.analytics_enabled is False
    assert settings.api.url == prefect_server
    assert (home / "ui").is_dir(), "the UI was unpacked into the environment's packages"


def test_the_server_removes_pages_of_old_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect's default keeps every run, and so the database grows for ever."""
    from prefect.settings.models.server.services import ServerServicesDBVacuumSettings

    for name, value in server_settings(tmp_path, 4201).items():
        if "VACUUM" in name:
            monkeypatch.setenv(name, value)
    vacuum = ServerServicesDBVacuumSettings()
    assert vacuum.enabled_vacuum_types == {"events", "flow_runs"}
    assert vacuum.retention_period.days == 90


def test_dotenv_keeps_what_others_wrote(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("WANDB_API_KEY=mine\n")
    path.chmod(0o644)
    write_env_file(path, {"A": "1"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "others could read the key"
    write_env_file(path, {"A": "2"})
    lines = path.read_text().splitlines()
    assert lines[0] == "WANDB_API_KEY=mine"
    assert lines.count(ENV_BEGIN) == 1
    assert 'A="2"' in lines
    assert 'A="1"' not in lines
