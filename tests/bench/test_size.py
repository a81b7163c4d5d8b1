"""The simulated iteration: the phases are the run's own, and a small one ends."""

import json
import subprocess
import sys

import pytest

from flows.paths import ROOT
from tests.bench.peers.processes import STEP, importing


@pytest.mark.slow
def test_a_small_one_tells_each_phase_and_what_it_left() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.size", json.dumps({"prompts": 8})],
        cwd=ROOT,
        env=importing({}),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(STEP))
    said = json.loads(line.removeprefix(STEP))
    assert {"gen", "reward", "adv", "update_actor", "sync"} <= set(said["phases"])
    assert said["files"] > 10
    assert said["peak_gib"] < 4
