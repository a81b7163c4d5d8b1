"""Starts the services of a compose file as processes of this machine, by their own commands.

What a container would have of its own is mapped: names of services to 127.0.0.1, ports to free
ones, volumes to folders. Images of others (database, S3) are stood in for by the servers of Debian
and moto.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from flows.services import free_port

BIN = Path(sys.executable).parent
DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
HEALTHY_S = 180.0
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


class Missing(Exception):
    """A variable that the file demands is not given; the message is the file's."""


def load(path: Path, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the file with its variables set, as compose reads them.

    Raises Missing for one without a value and without a default.
    """

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if given.get(name):
            return given[name]
        if kind == "-":
            return rest
        raise Missing(rest or name)

    def filled(node: Any) -> Any:
        if isinstance(node, str):
            return _VARIABLE.sub(value, node)
        if isinstance(node, list):
            return [filled(each) for each in node]
        if isinstance(node, dict):
            return {key: filled(each) for key, each in node.items()}
        return node

    return filled(yaml.safe_load(path.read_text()))


@dataclass
class Machine:
    """The services of ``file`` as processes; all files are below ``folder``."""

    file: dict[str, Any]
    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    processes: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)

    def start_all(self) -> None:
        """Start every service when those that it depends on are healthy."""
        left = dict(self.file["services"])
        while left:
            ready = [n for n, s in left.items() if not set(s.get("depends_on", ())) & set(left)]
            for name in ready:
                self._start(name)
            for name in ready:
                self._wait(name)
                del left[name]

    def stop_all(self) -> None:
        """End what was started and everything below it, the last one first."""
        for _, process in reversed(self.processes):
            try:
                below = psutil.Process(process.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                below = []
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
            _, alive = psutil.wait_procs(below, timeout=15)
            for each in alive:
                each.kill()

    def log(self, name: str) -> str:
        """Return what a service has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a service, mapped, and no others of this machine but PATH."""
        given = self.file["services"][name].get("environment", {})
        paths = [str(BIN), *map(str, DEBIAN), *os.environ["PATH"].split(os.pathsep)]
        own = {"PATH": os.pathsep.join(paths), "HOME": str(self._folder(f"home-{name}"))}
        # Ray would listen on all addresses, and keep its sockets among those of other clusters.
        own |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "OMP_NUM_THREADS": "1"}
        own |= {"RAY_TMPDIR": str(self._folder("ray")), "PGPORT": str(self._port("5432"))}
        hosts = {key: "127.0.0.1" for key in given if key.endswith("_HOST")}
        return own | {key: self.mapped(str(value)) for key, value in given.items()} | hosts

    def mapped(self, text: str) -> str:
        """Return a value or an argument as it reads here instead of in a container."""
        text = re.sub(r"/data\b", str(self._folder("data")), text)
        names = "|".join(self.file["services"])
        text = re.sub(rf"//(?:{names}):", "//127.0.0.1:", text).replace("0.0.0.0", "127.0.0.1")
        return re.sub(
            r"(127\.0\.0\.1:|--port=|^)(\d{4})\b", lambda m: m[1] + str(self._port(m[2])), text
        )

    def call(self, name: str, *command: str, timeout_s: float = 60) -> subprocess.CompletedProcess:
        """Run a command where the service runs, with its variables."""
        return subprocess.run(
            command,
            env=self.environment(name),
            cwd=self._folder("data"),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _port(self, inside: str) -> int:
        if inside not in self.ports:
            self.ports[inside] = free_port()
        return self.ports[inside]

    def _folder(self, name: str) -> Path:
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def _start(self, name: str) -> None:
        command = [self.mapped(word) for word in self.file["services"][name]["command"]]
        environment = self.environment(name)
        if name == "database":
            command = self._database(command, environment)
        elif name == "s3":
            command = ["moto_server", "-H", "127.0.0.1", "-p", str(self._port("8333"))]
        if name != "database":  # which must belong to another user than root
            command[0] = shutil.which(command[0], path=environment["PATH"]) or command[0]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=self._folder("data"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append((name, process))

    def _database(self, command: list[str], environment: dict[str, str]) -> list[str]:
        """Make the database as its image does on the first start; return what serves it."""
        home, secret = self._folder("database"), self.folder / "database-password"
        secret.write_text(environment["POSTGRES_PASSWORD"])
        as_owner = []
        if os.geteuid() == 0:  # initdb refuses root
            as_owner = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            for path in (home, secret):
                shutil.chown(path, "postgres", "postgres")
            for above in (self.folder, *self.folder.parents[:3]):
                above.chmod(above.stat().st_mode | 0o011)
        make = [*as_owner, str(DEBIAN[-1] / "initdb"), f"--pgdata={home}", f"--pwfile={secret}"]
        make += [f"--username={environment['POSTGRES_USER']}", "--auth=scram-sha-256"]
        done = subprocess.run([*make, "--no-sync"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        secret.unlink()
        here = ["-D", str(home), "-k", str(home), "-h", "127.0.0.1", "-p", str(self._port("5432"))]
        return [*as_owner, str(DEBIAN[-1] / command[0]), *command[1:], *here]

    def _wait(self, name: str) -> None:
        test = self.file["services"][name]["healthcheck"]["test"]
        command = [self.mapped(word) for word in test[1:]]
        if name == "database":  # the database itself is made by the image, once the server is up
            command = [word for word in command if not word.startswith("--dbname")]
        if name == "s3":
            port = self._port("8333")
            command = [
                "python",
                "-c",
                f"import socket; socket.create_connection(('127.0.0.1', {port}))",
            ]
        process = dict(self.processes)[name]
        end = time.monotonic() + HEALTHY_S
        while self.call(name, *command).returncode:
            assert process.poll() is None, f"{name} ended: {self.log(name)[-3000:]}"
            assert time.monotonic() < end, f"{name} is not healthy: {self.log(name)[-3000:]}"
            time.sleep(0.5)
        if name == "database":
            self._make("CREATE DATABASE prefect")
        if name == "s3":
            self._make_bucket()

    def query(self, statement: str, database: str = "prefect") -> str:
        """Return what psql prints for a statement."""
        return self._psql(statement, database)

    def _make(self, statement: str) -> None:
        self._psql(statement, "postgres")

    def _psql(self, statement: str, database: str) -> str:
        environment = self.environment("database")
        environment["PGPASSWORD"] = environment["POSTGRES_PASSWORD"]
        command = [
            "psql",
            "--no-psqlrc",
            "-At",
            "-h",
            "127.0.0.1",
            "-U",
            environment["POSTGRES_USER"],
        ]
        done = subprocess.run(
            [*command, "-d", database, "-c", statement],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _make_bucket(self) -> None:
        given = self.environment("s3")
        code = "import boto3, os; boto3.client('s3').create_bucket(Bucket=os.environ['S3_BUCKET'])"
        done = subprocess.run(
            [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
