"""A worker that is killed while it asks: nothing answered is asked again, and nothing is left."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.paths import RECIPES
from rlcore.cluster.types import WorkerDied
from rlcore.recipes.load import load_recipe
from rlcore.rl.workers import Workers
from tests.rlcore.rewards.judges.asking import judge, rows
from tests.rlcore.rewards.judges.server import (
    KEY,
    JudgeServer,
    Reply,
    judge_server,
    nonce_of,
    response_in,
)

ROOT = Path(__file__).parents[4]
TEXTS = [str(n) for n in range(40)]
SCORING = """
import json, sys
from pathlib import Path
from tests.rlcore.rewards.judges.asking import function, judge, rows
folder, url, texts = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
print("started", flush=True)
scorer = function(folder, judge(url, limits={"concurrency": 4}))
print(json.dumps([reward.score for reward in scorer.score(rows(*texts), 1.0)]))
"""


def slowly(request: dict[str, Any], number: int) -> Reply:
    """Call even numbers right, in 50 ms."""
    del number
    choice = "wrong" if int(response_in(request)) % 2 else "right"
    return Reply(f"VERDICT {nonce_of(request)}: {choice}", delay_s=0.05)


def start(folder: Path, server: JudgeServer) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCORING, str(folder), server.url, json.dumps(TEXTS)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wait_for(server: JudgeServer, count: int) -> None:
    deadline = time.monotonic() + 300
    while len(server.requests) < count:
        assert time.monotonic() < deadline, f"{len(server.requests)} of {count} requests"
        time.sleep(0.01)


def test_a_killed_process_costs_the_requests_under_way(tmp_path: Path) -> None:
    with judge_server(slowly) as server:
        killed = start(tmp_path, server)
        wait_for(server, 13)
        killed.kill()
        killed.wait()
        again = start(tmp_path, server)
        scores = json.loads(again.communicate(timeout=300)[0].splitlines()[-1])
        assert again.returncode == 0
        assert scores == [float(n % 2 == 0) for n in range(40)]
        assert len(server.requests) <= 40 + 4
        assert len({response_in(request) for request in server.requests}) == 40


def test_two_processes_ask_each_question_once_within_the_limits(tmp_path: Path) -> None:
    with judge_server(slowly) as server:
        both = [start(tmp_path, server) for _ in range(2)]
        found = [json.loads(one.communicate(timeout=300)[0].splitlines()[-1]) for one in both]
        assert found[0] == found[1]
        assert len(server.requests) == 40
        assert server.most <= 4


@pytest.mark.slow
def test_a_reward_worker_of_ray_has_the_key_and_may_be_killed(
    tmp_path: Path, ray_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with the worker's name; a rerun has the scores of an undisturbed one."""
    monkeypatch.setenv("HOME", str(ray_home))
    monkeypatch.setenv("PLANTED_KEY", KEY)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "rlcore" / "rewards"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    asks = {"name": "judge", "options": {"judge": "main"}}
    looks = {"name": "key_samples:finds_key"}
    with judge_server(slowly) as server:
        one = judge(server.url, key_env="PLANTED_KEY", limits={"concurrency": 4})
        given = {
            "store": str(tmp_path / "store"),
            "reward.functions": [looks, asks],
            "judges.main": one.model_dump(),
            "hardware.reward_workers": 2,
        }
        recipe = load_recipe("quickstart", given, directory=RECIPES)
        asked = rows(*TEXTS)
        with Workers(recipe) as workers, ThreadPoolExecutor(1) as other:
            pool = workers.rule_rewards()
            pool.score(asked[:2])
            children = reward_processes()
            scoring = other.submit(pool.score, asked)
            wait_for(server, 13)
            holder = next(iter(children)).parent()
            assert holder is not None
            holder.kill()
            with pytest.raises(WorkerDied, match="reward-"):
                scoring.result(timeout=300)
        _, alive = psutil.wait_procs(children, timeout=300)
        assert not alive
        with Workers(recipe) as workers:
            found = workers.rule_rewards().score(asked)
        assert [reward.score for reward in found] == [float(n % 2 == 0) for n in range(40)]
        assert len({response_in(request) for request in server.requests}) == 40
        assert len(server.requests) <= 40 + 2 * 4  # the other worker ended with its run
        assert set(server.keys) == {f"Bearer {KEY}"}


def reward_processes() -> set[psutil.Process]:
    """Return the processes that watch those of reward functions: children of the workers."""
    found = psutil.Process().children(recursive=True)
    alive = [process for process in found if process.status() != psutil.STATUS_ZOMBIE]
    own = {process for process in alive if "rlcore.rewards.child" in process.cmdline()}
    return {process for process in own if process.parent() not in own}
