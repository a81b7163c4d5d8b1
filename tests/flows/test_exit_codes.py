"""An exit code means the same on every way in, and docs/reference/exit_codes.md lists them."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flows import cli, local, services
from flows.commands.compare import WORSE
from flows.paths import ROOT
from rlcore.results.metrics import metrics_frame, publish_metrics
from rlcore.store.artifacts import ArtifactStore, Lineage

WRONG_KEY = "rl.iteratons"
CODES = {
    "recipes": 0,
    "run quickstart --dry-run": 0,
    "sql FROM·metrics --store whole": 0,
    "doctor --format csv": 1,  # others can read the password
    "status": 1,
    "sql FROM·metrics --store damaged": 1,
    "sql FROM·metric --store whole": 2,
    "sql FROM·metrics --store nowhere": 2,
    "runs --runs nowhere": 2,
    "compare one two": 2,
    "compare one two --fail-if acuracy·<·0": 2,
    "compare one": 2,
    "stop quickstart": 2,
    "run quickstrat": 2,
    "run quickstrat --dry-run": 2,
    f"run quickstart -o {WRONG_KEY}=1": 2,
    f"run quickstart -o {WRONG_KEY}=1 --dry-run": 2,
    "run quickstart -o reward.functions.0.name=arithmetc": 2,
    "run quickstart -o store=/proc/none": 2,  # no room for it, before anything starts
    "study quickstrat": 2,
    "algorithms --for cooking": 2,
    "from-verl nowhere.sh": 2,
    "recipe": 2,
    "recipes --format xml": 2,
    "local --recipe quickstrat": 2,
    "local --overrides {": 2,
    "local --overrides []": 2,
    f'local --overrides {{"{WRONG_KEY}":1}}': 2,
    "local --runs two": 2,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_server: str) -> Path:
    """A working directory with two stores, and a home where nothing runs."""
    del prefect_server
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "HOME", tmp_path / ".prefect")
    monkeypatch.setattr(local, "ENV_FILE", tmp_path / ".env")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "runs").mkdir()
    local.ENV_FILE.touch(0o644)
    frame = metrics_frame("rl", 1, {"loss": 1.0})
    for name in ("whole", "damaged"):
        publish_metrics(ArtifactStore(tmp_path / name), "k", "m", frame, Lineage("r", "c"))
    (table,) = (tmp_path / "damaged").glob("metrics/**/metrics.parquet")
    table.write_bytes(b"damaged")
    return tmp_path


@pytest.mark.parametrize("command", CODES)
def test_a_code_means_the_same_on_every_way_in(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del folder
    name, *arguments = [word.replace("·", " ") for word in command.split(" ")]
    try:
        code = local.main(arguments) if name == "local" else cli.main([name, *arguments])
    except SystemExit as ended:  # argparse
        code = ended.code
    assert code == CODES[command]
    error = capsys.readouterr().err
    assert "Traceback" not in error
    if code == 2:
        assert "error: " in error


@pytest.mark.slow
def test_output_that_nobody_reads_ends_a_command_in_silence(folder: Path) -> None:
    """A closed pipe was a traceback, or a line of Python's at its end."""
    started = []
    for command in ("recipes", "algorithms", "run quickstart --dry-run", "tables --format csv"):
        read, write = os.pipe()
        os.close(read)
        words = [sys.executable, "-m", "flows.cli", *command.split()]
        started.append(
            subprocess.Popen(
                words,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=write,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        os.close(write)
    ended = [(process.communicate(timeout=300)[1], process.returncode) for process in started]
    assert ended == [("", cli.UNREAD)] * len(started)


@pytest.mark.slow
def test_ctrl_c_ends_a_command_with_130(folder: Path) -> None:
    """It was a traceback."""
    with socket.socket() as hub:  # which takes calls and answers none
        hub.bind((services.HOST, 0))
        hub.listen()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "HF_HUB_OFFLINE": "0",
            "HF_ENDPOINT": f"http://{services.HOST}:{hub.getsockname()[1]}",
        }
        command = [sys.executable, "-m", "flows.cli", "doctor"]
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
        )
        hub.settimeout(30)
        call, _ = hub.accept()
        with call:
            call.recv(1)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=300)
    assert process.returncode == 130, error
    assert error == "Stopped.\n"


def test_the_page_lists_the_codes_that_there_are() -> None:
    """143 is that of SIGTERM (test_cancel), 3 that of ``compare --fail-if`` (test_compare)."""
    text = (ROOT / "docs" / "reference" / "exit_codes.md").read_text()
    listed = {int(code) for code in re.findall(r"(?m)^\| (\d+) \|", text)}
    others = {WORSE, cli.INTERRUPTED, cli.UNREAD, 128 + signal.SIGTERM}
    assert listed == {*CODES.values(), *others}
