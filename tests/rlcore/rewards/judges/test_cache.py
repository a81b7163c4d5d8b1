"""The cache is shared by processes, survives kills, and counts calls up to a ceiling."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.rewards.judges.cache import JudgeCache
from tests.rlcore.rewards.judges.asking import calls_made

COUNTING = """
import sys
from pathlib import Path
from rlcore.rewards.judges.cache import JudgeCache
cache = JudgeCache(Path(sys.argv[1]))
made = sum(cache.reserve("run", "j", most=150) for _ in range(100))
cache.keep((f"{sys.argv[2]}-{n}", "x") for n in range(made))
print(made)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "c.sqlite"


def test_the_first_answer_to_a_question_stays(path: Path) -> None:
    cache = JudgeCache(path)
    cache.keep([("q", "first"), ("q", "second")])
    cache.keep([("q", "third")])
    assert cache.find(["q", "other"]) == {"q": "first"}
    cache.close()
    assert JudgeCache(path).find(["q"]) == {"q": "first"}


def test_a_journal_that_cannot_be_merged_is_told(path: Path) -> None:
    """Closing would pass over it, and the file that is renamed would lack what it was made for."""
    cache = JudgeCache(path)
    cache.keep([("q", "first")])
    other = JudgeCache(path)
    other.find(["q"])
    with pytest.raises(sqlite3.OperationalError):
        cache.merge_journal()
    other.close()
    cache.merge_journal()
    assert not [file for file in path.parent.iterdir() if "-" in file.name]  # no journal


def test_many_questions_are_found(path: Path) -> None:
    cache = JudgeCache(path)
    cache.keep((str(n), str(n)) for n in range(1700))
    assert len(cache.find([str(n) for n in range(2000)])) == 1700


def test_calls_are_counted_by_run_and_judge_up_to_the_ceiling(path: Path) -> None:
    cache = JudgeCache(path)
    assert [cache.reserve("run", "j", most=2) for _ in range(3)] == [True, True, False]
    assert calls_made(path) == 2
    assert cache.reserve("other run", "j", most=2)
    assert cache.reserve("run", "other judge", most=2)
    cache.release("run", "j")
    assert cache.reserve("run", "j", most=2)
    cache.set_calls("run", "j", 9)  # what is counted is known better
    assert calls_made(path) == 2


def test_processes_share_one_ceiling(path: Path) -> None:
    """Two workers must not pay for twice as much."""
    command = [sys.executable, "-c", COUNTING, str(path)]
    workers = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in "ab"
    ]
    made = [int(worker.communicate(timeout=300)[0]) for worker in workers]
    cache = JudgeCache(path)
    assert sum(made) == calls_made(path) == 150
    assert len(cache.find([f"{w}-{n}" for w in "ab" for n in range(100)])) == 150


def test_a_killed_process_loses_no_answer_that_it_kept(path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from rlcore.rewards.judges.cache import JudgeCache\n"
        "cache = JudgeCache(Path(sys.argv[1])); cache.reserve('run', 'j', most=9)\n"
        "cache.keep([('q', 'a')]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL
    cache = JudgeCache(path)
    assert cache.is_whole()
    assert (cache.find(["q"]), calls_made(path)) == ({"q": "a"}, 1)


def test_requests_of_a_minute_are_counted_and_a_clock_set_back_blocks_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("rlcore.rewards.judges.cache.time.time", lambda: now)
    cache = JudgeCache(path)
    assert [cache.send("j", per_minute=2) for _ in range(2)] == [0.0, 0.0]
    now = 1010.0
    assert cache.send("j", per_minute=2) == pytest.approx(50.0)
    assert cache.send("other", per_minute=2) == 0.0
    now = 1060.1
    assert cache.send("j", per_minute=2) == 0.0
    now = 500.0
    assert cache.send("j", per_minute=1) == 0.0


def test_damage_is_seen(path: Path) -> None:
    JudgeCache(path).close()
    os.truncate(path, 0)
    path.write_bytes(b"not a database, and long enough to be looked at" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        JudgeCache(path)
