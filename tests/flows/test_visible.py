"""A deployed run is seen while it runs: by the README's own command, and by `watch` begun later."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from flows.local import ROOT, down
from tests.flows.small_run import SMALL
from tests.flows.test_local import UP, environment, python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

START_UP_S = 60
LONGEST_SILENCE_S = 30  # half of what the start takes
# Every process that imports vLLM waits: a large model takes as long to load.
SLOW_START = f"""
import importlib.abc, sys, time

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "vllm":
            sys.meta_path.remove(self)
            time.sleep({START_UP_S})

sys.meta_path.insert(0, Slow())
"""
WATCH = """
import sys
from pathlib import Path
from flows import local
local.HOME = Path(sys.argv[1])
from flows.cli import main
sys.exit(main(["watch"]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The home of a server whose runs start slowly; `.env` lies in ``tmp_path``."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/sitecustomize.py").write_text(SLOW_START)
    home = tmp_path / ".prefect"
    try:
        slow = {"PYTHONPATH": f"{tmp_path / 'slow'}:{ROOT}"}  # the reward is a test module
        up = python(UP, str(home), str(tmp_path / ".env"), extra=slow)
        assert up.returncode == 0, up.stderr
        yield home
    finally:
        down(home)


def test_no_long_silence_and_a_watch_begun_in_mid_run_ends_in_the_table(
    home: Path, tmp_path: Path
) -> None:
    overrides = {**SMALL, "rl.iterations": 20, "store": str(tmp_path / "store")}
    overrides["hardware.rollout.engine"] = "vllm"
    command = [sys.executable, "-m", "prefect", "deployment", "run", "rl-pipeline/quickstart"]
    command += ["--watch", "-p", f"overrides={json.dumps(overrides)}"]
    run = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**environment(), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[tuple[float, str]] = []
    iterates = threading.Event()

    def read() -> None:
        assert run.stdout is not None
        for line in run.stdout:
            lines.append((time.monotonic(), line))
            if "iteration 1/20" in line:
                iterates.set()
        iterates.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert iterates.wait(300), "no iteration was reported"
        assert run.poll() is None, "".join(line for _, line in lines)
        watched = python(WATCH, str(home))
        code = run.wait(300)
    finally:
        run.kill()
        reader.join()
    shown = "".join(line for _, line in lines)
    assert code == 0, shown
    assert "is running, 4" in shown, "the start-up was not slow"
    times = [when for when, _ in lines]
    silences = [later - earlier for earlier, later in pairwise(times)]
    longest = max(silences)
    assert longest <= LONGEST_SILENCE_S, lines[silences.index(longest)][1]
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert "iteration 20/20" in watched.stdout
    assert "stage or phase" in watched.stdout  # the reward gives no verdict, so no accuracy
    assert "Summary:" in watched.stdout
