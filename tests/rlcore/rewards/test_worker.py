"""The reward worker: whatever a reward function does, it loses its own row only."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlcore.cluster.progress import report_to
from rlcore.rewards import process
from rlcore.rewards.unscored_rows import RewardFailureError
from rlcore.rewards.worker import RewardWorker
from rlcore.rl.reward import rewards_frame
from schemas.errors import UserError
from schemas.rl import RewardFunction, RewardSection
from tests.rlcore.rewards.scoring import ERROR, HERE, OK, TIMEOUT, Scoring, Start, outcomes, rows

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("command", ["loop", "sleep", "regex"])
def test_a_row_that_hangs_is_a_timeout_and_the_rest_is_scored(start: Start, command: str) -> None:
    """An unbounded row would stop the whole run."""
    rewards = start().score(rows("fine", command, "fine", command, "fine"), timeout_s=0.5)
    assert outcomes(rewards) == [OK, TIMEOUT, OK, TIMEOUT, OK]
    assert 0.5 <= rewards[1].seconds < 60, "a row that hangs would never end"
    assert rewards[1].detail == (
        "no score of reward_samples:by_command within 0.5 s; its process was killed"
    )
    assert [reward.trajectory_id for reward in rewards] == ["t0", "t1", "t2", "t3", "t4"]


@pytest.mark.parametrize(
    ("command", "detail"),
    [
        ("exit", "the process of reward_samples:by_command died in this row (exit code 7)"),
        ("abort", "the process of reward_samples:by_command died in this row (signal SIGABRT)"),
        ("sysexit", "SystemExit: leaving"),
        ("raise key", "KeyError: 'key'"),
        ("nan", "UserError: the reward function returned 'nan', which is not a finite number"),
        ("none", "the reward function returned None"),
        ("close", "the process of reward_samples:by_command died in this row (exit code 1)"),
    ],
)
def test_a_row_that_fails_is_an_error_with_its_reason(
    start: Start, command: str, detail: str
) -> None:
    rewards = start().score(rows("fine", command, "fine"), timeout_s=10)
    assert outcomes(rewards) == [OK, ERROR, OK]
    assert rewards[1].detail.startswith(detail)


@pytest.mark.parametrize(
    ("command", "outcome", "detail"),
    [
        (
            "loop",
            "timeout",
            "no score of reward_samples:by_command within 1 s; its process was killed",
        ),
        (
            "exit",
            "error",
            "the process of reward_samples:by_command died in this row (exit code 7)",
        ),
        ("raise key", "error", "KeyError: 'key'"),
    ],
)
def test_what_a_function_of_weight_zero_does_costs_no_score(
    start: Start, command: str, outcome: str, detail: str
) -> None:
    """Listed first, it would end the process before the function that counts has scored."""
    functions = [("by_command", 0.0), ("length", 1.0), ("rich", 0.0)]
    worker = start(
        functions=tuple(
            RewardFunction(name=f"reward_samples:{name}", weight=weight)
            for name, weight in functions
        )
    )
    rewards = worker.score(rows("fine", command, "72"), timeout_s=1.0)
    assert outcomes(rewards) == [
        ("wrong", 6.04),
        ("wrong", 6 + len(command) / 100),
        ("ok", 6.02),
    ]
    assert [bool(reward.failures) for reward in rewards] == [False, True, False]
    failure = rewards[1].failures["reward_samples:by_command"]
    assert failure.outcome == outcome
    assert failure.detail.startswith(detail)
    assert list(rewards[1].failures) == ["reward_samples:by_command"], (
        "one function cost another its score"
    )
    assert (rewards[1].correct, rewards[1].counts) == (False, False)


@pytest.mark.slow
def test_the_rest_is_not_tried_once_too_many_rows_are_lost(start: Start) -> None:
    """A function that hangs would cost its limit for every row, which can be hours."""
    worker, hanging = start(max_lost=0.2), rows(*["ok"] * 2, *["sleep"] * 18)
    begun = time.monotonic()
    said = (
        r"^[5-9] of 20 rows could not be scored .\d\d.0%, the others were not tried., above reward"
    )
    with pytest.raises(RewardFailureError, match=said):
        worker.score(hanging, 0.3)
    assert time.monotonic() - begun < 48 * 0.3
    few = rows(*["ok"] * 9, "sleep")
    assert outcomes(worker.score(few, 0.3)) == [*[OK] * 9, TIMEOUT], "others may do"


@pytest.mark.slow
def test_a_lost_row_is_noted_and_of_many_in_a_row_the_first(start: Start) -> None:
    notes: list[str] = []
    report_to(lambda count, note: notes.append(note))
    try:
        start().score(rows("ok", *["sleep"] * 5, "ok"), 0.3)
    finally:
        report_to(None)
    detail = "no score of reward_samples:by_command within 0.3 s; its process was killed"
    assert [note for note in dict.fromkeys(notes) if note] == [
        f"reward_samples:by_command lost a row: {detail}"
    ]


@pytest.mark.slow
def test_a_function_cannot_change_the_score_of_another(start: Start) -> None:
    """Each function runs in its own process."""
    names = ("reward_samples:patches_all", "gsm8k", "reward_samples:length")
    functions = tuple(RewardFunction(name=name) for name in names)
    rewards = start(functions=functions).score(rows("#### 72", "#### 72", "#### 5"), timeout_s=10)
    for reward, right in zip(rewards, (1.0, 1.0, 0.0), strict=True):
        assert reward.parts["gsm8k"] == right
        assert reward.parts["reward_samples:length"] == pytest.approx(6.07, abs=0.02)
        assert reward.score is None or reward.score == pytest.approx(sum(reward.parts.values()))


def test_a_function_tells_of_its_score_alone(start: Start) -> None:
    """A forged verdict would be kept, and read into the judges' cache as their answer."""
    functions = (RewardFunction(name="reward_samples:forges_verdicts"),)
    (reward,) = start(functions=functions).score(rows("fine"), timeout_s=10)
    assert (reward.trajectory_id, reward.score) == ("t0", 1.0)
    assert (reward.counts, reward.failures, reward.verdicts) == (True, {}, {})


def test_half_a_character_does_not_end_the_run(start: Start) -> None:
    """The policy may write an emoji's first half, and no table takes it."""
    (reward,) = start().score(rows('half "\\ud83d"'), timeout_s=10)
    assert (reward.score, reward.answer, reward.detail) == (1.0, "?", "said ?")
    assert rewards_frame([reward])["detail"].to_list() == ["said ?"]


def test_there_is_a_memory_limit_by_default(start: Start) -> None:
    """The kernel would kill whatever is largest: the learner."""
    function = RewardFunction(name="reward_samples:by_command")
    worker = Scoring(RewardSection(functions=(function,), max_error_fraction=1))
    try:
        rewards = worker.score(rows("hog", "fine"), timeout_s=20)
    finally:
        worker.close()
    assert outcomes(rewards) == [ERROR, OK]
    assert rewards[0].detail.startswith("MemoryError (reward_samples.py line ")


def test_a_memory_hog_is_an_error_and_the_rest_is_scored(start: Start) -> None:
    """Without the limit the kernel would kill whatever is largest: the learner."""
    rewards = start(memory_gib=1.0).score(rows("fine", "hog", "fine"), timeout_s=20)
    assert outcomes(rewards) == [OK, ERROR, OK]
    assert rewards[1].detail.startswith("MemoryError (reward_samples.py line ")


def test_a_memory_limit_without_room_is_refused(start: Start) -> None:
    with pytest.raises(UserError, match=r"reward.memory_gib = 0.01 is too little.*at least"):
        start(memory_gib=0.01)


def test_output_of_a_function_is_dropped(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """200 MB of prints must neither block the run nor reach its log."""
    rewards = start().score(rows("huge", "fine"), timeout_s=20)
    assert outcomes(rewards) == [OK, OK]
    assert len(capfd.readouterr().out) < 1000


def test_what_a_row_started_is_killed_with_it(start: Start) -> None:
    worker = start()
    started, hung = worker.score(rows("background 60", "loop"), timeout_s=0.5)
    assert hung.outcome == "timeout"
    assert started.score is not None
    assert not _is_running(int(started.score)), "a forked process outlived the row that hung"


@pytest.mark.parametrize("command", ["daemon 60", "orphan 60"])
def test_no_process_of_a_row_outlives_the_worker(start: Start, command: str) -> None:
    """In a session of its own, or after ending its watcher: killing a process group misses both."""
    worker = start()
    (reward,) = worker.score(rows(command), timeout_s=2)
    assert reward.score is not None
    pid = int(reward.score)
    assert _is_running(pid)
    worker.close()
    deadline = time.monotonic() + 300
    while _is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_child_that_died_between_batches_costs_no_row(start: Start) -> None:
    worker = start()
    pid = int(worker.score(rows("pid"), timeout_s=10)[0].score or 0)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)
    assert outcomes(worker.score(rows("fine", "fine"), timeout_s=10)) == [OK, OK]


def test_the_child_is_replaced_after_its_rows(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verifiers leak; a process that never ends grows until the machine does."""
    monkeypatch.setattr(process, "RECYCLE_ROWS", 3)
    worker = start()
    calls = [worker.score(rows(*["pid"] * count), timeout_s=10) for count in (2, 2, 1)]
    first, second, third = ({reward.score for reward in rewards} for rewards in calls)
    assert first == second
    assert len(first) == 1
    assert third.isdisjoint(first)


def test_the_child_stays_light(start: Start) -> None:
    """A child that imports torch takes seconds to restart after each hang."""
    assert start().score(rows("modules"), timeout_s=10)[0].score == 0.0


def test_odd_text_arrives_as_it_is(start: Start) -> None:
    odd = ["", "\0", "🦆", "\ud800", "line\nbreak", "x" * 1_000_000]
    rewards = start("reward_samples:length").score(rows(*odd), timeout_s=10)
    assert [reward.score for reward in rewards] == pytest.approx([6 + len(t) / 100 for t in odd])


def test_no_rows_are_no_rewards(start: Start) -> None:
    assert start().score([], timeout_s=1) == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gms8k", r"reward.functions\[0\].name = 'gms8k' is not a reward function.*did you mean"),
        ("reward_samples:lenght", "has no lenght.*did you mean 'length'"),
        ("broken_reward:f", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_function_that_cannot_be_had_is_refused_at_the_start(
    start: Start, name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_reward.py").write_text("f = 1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=sentence):
        start(name)


PARENT = """
from rlcore.rewards.worker import RewardWorker
from rlcore.rewards.types import RewardRow
from schemas.rl import RewardFunction, RewardSection
from tests.rlcore.rewards.scoring import ERROR, HERE, OK, TIMEOUT, Scoring, Start, outcomes, rows
worker = RewardWorker(RewardSection(functions=(RewardFunction(name="reward_samples:by_command"),)))
row = lambda text: RewardRow("t", "s", text, "1", {}, "stop", 1, "p")
score = lambda text, limit: next(iter(worker.score([row(text)], limit, kind="rows")[0].values()))
print(int(score("pid", 9).score), flush=True)
score("%s", 1.0)
"""


@pytest.mark.parametrize("command", ["sleep", "fine"])
def test_the_child_ends_when_its_parent_is_killed(command: str) -> None:
    """Kill -9 of a run must not leave a process that spins forever."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT % command],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.2)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 300
    while _is_running(child):
        assert time.monotonic() < deadline, "the scoring process outlived its parent"
        time.sleep(0.1)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_reward_function_is_in_no_sandbox(tmp_path: Path, start: Start) -> None:
    """Stated in docs/do/secure.md, so that nobody relies on one."""
    secret = tmp_path / "secret"
    secret.write_text("mine")
    own = Path(f"/proc/{os.getpid()}/environ")
    files = [path for path in (secret, own) if path.exists()]
    scores = [r.score for r in start("reward_samples:size").score(rows(*map(str, files)), 5)]
    assert scores[0] == 4
    assert all(score and score > 0 for score in scores)


def test_no_key_or_token_reaches_a_reward_function_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    names = ["WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "JUDGE_KEY", "PATH", "HOME"]
    for name in names[:4]:
        monkeypatch.setenv(name, "planted")
    function = RewardFunction(name="reward_samples:sees")
    worker = Scoring(RewardSection(functions=(function,), env=("JUDGE_KEY",)))
    try:
        seen = [reward.score for reward in worker.score(rows(*names), timeout_s=5)]
    finally:
        worker.close()
    assert seen == [0, 0, 0, 1, 1, 1]
    with pytest.raises(UserError, match=r"reward.env\[0\] = 'NOT_SET' is not set where"):
        RewardWorker(RewardSection(functions=(function,), env=("NOT_SET",)))


def test_the_limit_counts_from_the_latest_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first row of a prompt may take longer, as it loads a model; the next has its own time."""
    (tmp_path / "loads_a_model.py").write_text(
        "import time\n"
        "class Result(dict):\n"
        "    def items(self):\n"
        "        time.sleep(0.2)\n"
        "        return super().items()\n"
        "def f(rows):\n"
        "    time.sleep(4)\n"
        "    return [Result(score=1.0) for _ in rows]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = Scoring(RewardSection(functions=(RewardFunction(name="loads_a_model:f", batch=True),)))
    try:
        assert outcomes(worker.score(rows("a", "b", "c"), timeout_s=3.0)) == [OK] * 3
    finally:
        worker.close()
