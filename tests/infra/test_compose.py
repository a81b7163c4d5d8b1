"""compose.yaml: held to its schema, and its services started by their own commands as processes."""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flows.local import client_settings, server_settings
from tests.flows.small_run import SMALL
from tests.infra.compose import Machine, Missing, load
from tests.listeners import open_to_others

FILE = Path(__file__).parents[2] / "infra" / "compose.yaml"
SECRETS = ("PREFECT_AUTH", "POSTGRES_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY", "RAY_TOKEN")
OURS = ("server", "ray", "worker")


def given() -> dict[str, str]:
    return {name: secrets.token_hex(24) for name in SECRETS} | {
        "PREFECT_AUTH": f"admin:{secrets.token_hex(16)}"
    }


def test_it_is_a_compose_file() -> None:
    command = [Path(sys.executable).with_name("check-jsonschema")]
    command += ["--builtin-schema", "vendor.compose-spec", FILE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("left_out", SECRETS)
def test_no_secret_has_a_default(left_out: str) -> None:
    with pytest.raises(Missing, match="give "):
        load(FILE, {name: value for name, value in given().items() if name != left_out})
    load(FILE, given())


def test_no_port_is_open_to_other_machines() -> None:
    services = load(FILE, given())["services"]
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports == ["127.0.0.1:4200:4200"]


def test_every_service_restarts_and_says_whether_it_is_healthy() -> None:
    for name, service in load(FILE, given())["services"].items():
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"], name
    ours = {name: load(FILE, given())["services"][name] for name in OURS}
    assert all(service["image"] == "rl-pipeline:cpu" for service in ours.values())
    assert all(service["cap_drop"] == ["ALL"] for service in ours.values())


def test_server_and_ray_ask_for_what_the_worker_has() -> None:
    values = given()
    services = load(FILE, values)["services"]
    server, ray, worker = (services[name]["environment"] for name in OURS)
    assert server["PREFECT_SERVER_API_AUTH_STRING"] == values["PREFECT_AUTH"]
    assert worker["PREFECT_API_AUTH_STRING"] == values["PREFECT_AUTH"]
    assert server["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    for each in (ray, worker):
        assert (each["RAY_AUTH_MODE"], each["RAY_AUTH_TOKEN"]) == ("token", values["RAY_TOKEN"])


def test_its_settings_are_those_of_a_server_on_this_machine(tmp_path: Path) -> None:
    """But for places, addresses and who asks for what. A new setting belongs into both."""
    services = load(FILE, given())["services"]
    ours = {"server": server_settings(tmp_path, 4200), "worker": client_settings(tmp_path, 4200)}
    for name, settings in ours.items():
        environment = services[name]["environment"]
        others = {"worker": "PREFECT_SERVER_UI_", "server": "PREFECT_WORKER_"}[name]
        wanted = {k: v for k, v in settings.items() if not k.startswith(others)}
        assert not wanted.keys() - environment.keys(), name
        places = (str(tmp_path), "http://", "admin:")
        fixed = {k: v for k, v in wanted.items() if not v.startswith(places)}
        assert {k: environment[k] for k in fixed} == fixed, name


@pytest.fixture(scope="module")
def secret() -> dict[str, str]:
    return given()


@pytest.fixture(scope="module")
def machine(secret: dict[str, str]) -> Iterator[Machine]:
    # Not pytest's folder: the path of a socket, which Ray makes below it, has 107 bytes at most.
    with TemporaryDirectory(prefix="rlp-site-") as folder:
        site = Machine(load(FILE, secret), Path(folder))
        try:
            site.start_all()
            yield site
        finally:
            site.stop_all()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_on_postgres_s3_and_ray_by_the_files_own_commands(
    machine: Machine, secret: dict[str, str]
) -> None:
    """What docs/do/scale.md has an administrator type, on what the file starts."""
    overrides = {
        **{key: value for key, value in SMALL.items() if key != "reward.functions"},
        "rl.iterations": 2,
        "store": "s3://rl-pipeline/store",
        "hardware.ray_address": machine.mapped("127.0.0.1:6379"),
        "hardware.rollout.engine": "transformers",
        "hardware.rollout.engines": 1,
    }
    run = ["prefect", "deployment", "run", "rl-pipeline/quickstart", "--watch"]
    run += ["--param", f"overrides={json.dumps(overrides)}"]
    asked = machine.call("worker", *run, timeout_s=600)
    assert asked.returncode == 0, asked.stdout[-2000:] + machine.log("worker")[-4000:]
    assert open_to_others() == set()
    states = machine.query("SELECT DISTINCT state_name FROM flow_run")
    assert states.split() == ["Completed"]
    listed = "import s3fs; print(*s3fs.S3FileSystem().ls('rl-pipeline/store'))"
    kinds = machine.call("worker", "python", "-c", listed).stdout.split()
    assert {"rl-pipeline/store/policy", "rl-pipeline/store/export"} <= set(kinds)
    dump = ["pg_dump", "--host=127.0.0.1", "--username=prefect", "prefect"]
    password = f"PGPASSWORD={secret['POSTGRES_PASSWORD']}"
    database = machine.call("database", "env", password, *dump, timeout_s=120).stdout
    assert "rl-pipeline" in database
    written = {str(path): _content(path) for path in machine.folder.rglob("*") if path.is_file()}
    for name, value in secret.items():
        value = value.removeprefix("admin:")
        assert value not in database, name
        holding = [path for path, content in written.items() if value.encode() in content]
        assert not holding, f"{name}: {holding}"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # the services continue, and remove files of theirs
        return b""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_server_asks_for_password_csrf_token_and_its_own_name(machine: Machine) -> None:
    code = """
import json, sys, urllib.request as r
url, auth = sys.argv[1:3]
def status(path, method='GET', **headers):
    asked = r.Request(url + path, method=method, data=b'{}' if method == 'POST' else None,
                      headers={k.replace('_', '-'): v for k, v in headers.items()})
    try:
        return r.urlopen(asked).status
    except r.HTTPError as error:
        return error.code
import base64
basic = 'Basic ' + base64.b64encode(auth.encode()).decode()
print(json.dumps([status('/version'), status('/version', Authorization=basic),
    status('/flows/filter', 'POST', Authorization=basic, Content_Type='application/json'),
    status('/version', Authorization=basic, Host='server'),
    status('/version', Authorization=basic, Host='evil.example')]))
"""
    environment = machine.environment("worker")
    url, auth = environment["PREFECT_API_URL"], environment["PREFECT_API_AUTH_STRING"]
    asked = machine.call("worker", "python", "-c", code, url, auth)
    assert json.loads(asked.stdout) == [401, 200, 403, 200, 403], asked.stderr
