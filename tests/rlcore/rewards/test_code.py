"""The reward of programs: right ones are paid, and no program is paid that does not solve its
tests."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlcore.rewards import code
from rlcore.rewards.code import cases_of, last_program, same_output, same_result, scorer
from rlcore.rewards.registry import check_functions, specs_of
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rewards.worker import RewardWorker
from rlcore.sandbox.probe import find_sandbox
from rlcore.sandbox.types import SandboxError
from schemas.errors import UserError
from schemas.rl import RewardFunction, RewardSection

ROOT = Path(__file__).parents[3]
SUMS = {"inputs": ["1 2\n", "3 4\n", "5 6\n"], "outputs": ["3\n", "7\n", "11\n"]}
ADDS = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]}
SOLVES = "print(sum(map(int, input().split())))"


def row(program: str, tests: Any, name: str = "t") -> RewardRow:
    truth = tests if isinstance(tests, str) or tests is None else json.dumps(tests)
    response = f"Here:\n```python\n{program}\n```\nDone."
    return RewardRow(name, "source", response, truth, {}, "stop", 3, "prompt")


def score(program: str, tests: Any, **options: Any) -> Reward:
    return scorer(**options)(row(program, tests))


def test_all_tests_or_the_share_of_those_that_pass() -> None:
    right = score(SOLVES, SUMS)
    assert (right.outcome, right.score, right.correct, right.detail) == ("ok", 1.0, True, "")
    assert right.answer is None, "no two programs are one vote"
    some = "a, b = map(int, input().split()); print(3 if a == 1 else 11)"
    wrong = score(some, SUMS)
    assert (wrong.outcome, wrong.score, wrong.correct) == ("wrong", 0.0, False)
    assert wrong.detail == "test 2 of 3: wrong output"
    share = score(some, SUMS, partial=True)
    assert (share.outcome, share.score, share.correct) == ("wrong", pytest.approx(2 / 3), False)


@pytest.mark.parametrize(
    "program",
    [
        "def add(a, b): return a + b",
        "class Solution:\n    def add(self, a, b): return a + b",
        "def add(a, b):\n    print('noise', flush=True)\n    return a + b",
        "import os\ndef add(a, b):\n    os.write(1, b'noise')\n    return a + b",
        "if __name__ == '__main__': 1 / 0\nadd = lambda a, b: a + b",
    ],
)
def test_functions_are_called(program: str) -> None:
    assert score(program, ADDS).score == 1.0


@pytest.mark.parametrize(
    "program",
    [
        "def add(a: int, b: Optional[int]) -> int: return reduce(int.__add__, deque([a, b]))",
        "from __future__ import annotations\ndef add(a: Tree, b): return math.ceil(sqrt((a+b)**2))",
        "@lru_cache(None)\ndef add(a, b): return 1 + add(a - 1, b) if a else b",
        "def add(a, b, n=2500): return add(a, b, n - 1) if n else pow(a + b, 1, 99)",
    ],
)
def test_programs_need_not_import_the_standard_library(program: str) -> None:
    """Nor raise the limit of recursion, where verl scores them."""
    assert score(program, ADDS).detail == ""
    said = f"{program}\nprint(add(*map(int, input().split())))"
    assert score(said, SUMS).detail == ""


def test_results_wrapped_in_lists_as_in_apps() -> None:
    wrapped = {**ADDS, "outputs": [[3], [7]]}
    assert score("def add(a, b): return a + b", wrapped).score == 1.0
    assert score("def add(a, b): return [a + b]", wrapped).score == 1.0
    assert score("def add(a, b): return [[a + b]]", wrapped).score == 0.0


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("raise ValueError('no')", "exit code 1: ValueError: no"),
        ("def f(:", "exit code 1: SyntaxError: invalid syntax"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import sys; print(3); sys.exit(1)", "exit code 1"),
        ("while True: pass", "no end within 0.5 s"),
        ("x = bytearray(10 ** 12)", "more than 256 MiB of memory"),
        ("while True: print('x' * 10 ** 6)", "more than 16 MiB of output"),
        ("import ctypes; ctypes.string_at(0)", "killed by signal 11"),
        ("import os; os.fork()", "exit code 1: PermissionError: [Errno 1] Operation not permitted"),
    ],
)
def test_a_failure_of_the_program_is_wrong_with_the_reason(program: str, detail: str) -> None:
    said = score(program, SUMS, timeout_s=0.5, memory_mib=256)
    assert (said.outcome, said.score, said.correct) == ("wrong", 0.0, False)
    assert said.detail == f"test 1 of 3: {detail}"


FORGERIES = {
    "prints nothing and exits with 0": "import sys; sys.exit(0)",
    "leaves at once": "import os; os._exit(0)",
    "prints what it was asked": "print(input())",
    "prints that it passed": "print('ready'); print('ok'); print('true'); print('1.0')",
    "prints all small sums": "print(*range(1000), sep='\\n')",
    "equals everything": "class A(int):\n  def __eq__(s, o): return True\nprint(A(-1))",
    "reads the expected output": (
        "import os\nfor top in ('/proc', '/tmp', '/var', '/root', '/home'):\n"
        "  for folder, _, names in os.walk(top):\n    for name in names:\n"
        "      try: text = open(os.path.join(folder, name)).read(10 ** 5)\n"
        "      except Exception: continue\n      if 'outputs' in text: print(text)"
    ),
    "patches the comparison": (
        "import builtins, json\nbuiltins.all = builtins.any = lambda *a: True\n"
        "json.loads = json.dumps = lambda *a, **k: True\nprint(True)"
    ),
    "at exit": "import atexit, os\natexit.register(lambda: os._exit(0))\nraise ValueError",
    "closes stdout": "import os; os.close(1); os._exit(0)",
    "answers the supervisor": (
        "import os\nfor n in range(3, 256):\n  try: os.write(n, b'ready')\n"
        "  except OSError: pass\nos._exit(0)"
    ),
}
FORGED_RESULTS = {
    "equals everything": (
        "class A(int):\n  def __eq__(s, o): return True\ndef add(a, b): return A(-1)"
    ),
    "is a text": "def add(a, b): return str(a + b)",
    "is true": "def add(a, b): return True",
    "is not a number": "def add(a, b): return float('nan')",
    "is not JSON": "def add(a, b): return {a + b}",
    "is deeply nested": (
        "import os\nfor n in range(3, 99):\n  try: os.write(n, b'[' * 10 ** 6)\n"
        "  except OSError: pass\nos._exit(0)"
    ),
    "walks the frames": (
        "import sys\ndef add(a, b):\n  f = sys._getframe()\n  while f:\n"
        "    for v in list(f.f_locals.values()) + list(f.f_globals.values()):\n"
        "      if isinstance(v, dict) and 'outputs' in v: return v['outputs'][0]\n"
        "    f = f.f_back"
    ),
    "comes twice": "import os\ndef add(a, b):\n  os.write(3, b'3'); return a + b + 1",
    "patches json": ("import json\njson.dumps = lambda x: 'true'\ndef add(a, b): return 0"),
    "has no function": "pass",
    "raises on output": (
        "class A(dict):\n  def items(s): raise SystemExit(0)\ndef add(a, b): return A(a=1)"
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_output_is_not_paid(name: str) -> None:
    said = score(FORGERIES[name], {"inputs": ["1 2\n"], "outputs": ["3\n"]}, timeout_s=2)
    assert (said.outcome, said.score, said.correct) == ("wrong", 0.0, False)


@pytest.mark.parametrize("name", FORGED_RESULTS)
def test_a_forged_result_is_not_paid(name: str) -> None:
    said = score(FORGED_RESULTS[name], {**ADDS, "inputs": [[1, 2]], "outputs": [3]}, timeout_s=2)
    assert (said.outcome, said.score, said.correct) == ("wrong", 0.0, False)


def test_expected_outputs_never_enter_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox, seen = find_sandbox(), []

    class Spy:
        def run(self, *arguments: Any, **named: Any) -> Any:
            seen.append(repr((arguments, named)))
            return sandbox.run(*arguments, **named)

    monkeypatch.setattr(code, "find_sandbox", lambda setting: Spy())
    secret = {"inputs": ["1\n"], "outputs": ["271828\n"]}
    score("print(1)", secret)
    score("def f(x): return 1", {"fn_name": "f", "inputs": [[1]], "outputs": [271828]})
    assert len(seen) == 2
    assert not any("271828" in text for text in seen)


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\na\n```", "a"),
        ("```py\na\n```\ntext\n~~~Python3\nb\n~~~", "b"),
        ("````python\n```\na\n````", "```\na"),
        ("```python\na\n```\n```\nno language\n```", "a"),
        ("```python\na\n```\n```text\nb\n```", "a"),
        ("```python\na\n```\n```python\ncut off", "a"),
        ("  ```python\r\na\r\n  ```", "a\r"),
        ("```python\n```", ""),
        ("print(1)", None),
        ("```\nprint(1)\n```", None),
        ("```python\nnever closed", None),
        ("say ```python x``` inline", None),
        ("", None),
        ("`" * 1_000_000, None),
        ("```python\n" * 100_000, None),
    ],
)
def test_the_program_is_the_last_python_block(response: str, program: str | None) -> None:
    assert last_program(response) == program


def test_no_program_is_no_answer() -> None:
    said = scorer()(RewardRow("t", "s", "It is 3.", json.dumps(SUMS), {}, "stop", 3, "p"))
    assert (said.outcome, said.score, said.correct) == ("no_answer", 0.0, False)


@pytest.mark.parametrize(
    ("said", "expected", "same"),
    [
        ("3", "3\n", True),
        ("3  \n\n", "3", True),
        ("1 2\n3", "1 2\n3\n", True),
        ("1  2", "1 2", True),
        ("1\n2", "1 2", False),
        ("3.0", "3", False),
        ("3", "3.0", True),
        ("0.33333334", "0.3333333", True),
        ("0.3334", "0.3333333", False),
        ("1e3", "1000.0", True),
        ("nan", "nan", True),
        ("nan", "1.0", False),
        ("inf", "1.0", False),
        ("1_0", "10.0", False),
        ("YES", "yes", False),
        ("", "3", False),
        ("3 4", "3", False),
        ("1" * 10_000_000, "1.5", False),
        ("\ufffd", "3", False),
    ],
)
def test_outputs_are_compared_as_words(said: str, expected: str, same: bool) -> None:
    assert same_output(said, expected) is same


@pytest.mark.parametrize(
    ("said", "expected", "same"),
    [
        (1, 1, True),
        (1.0, 1, True),
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, True),
        (10**400, 1.5, False),
        (True, 1, False),
        (1, True, False),
        (True, True, True),
        (None, None, True),
        (None, 0, False),
        ("1", 1, False),
        ("a", "a", True),
        ([1, [2]], [1, [2]], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ({"a": 1, "b": [2.0]}, {"b": [2], "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({}, [], False),
    ],
)
def test_results_are_compared_as_json(said: Any, expected: Any, same: bool) -> None:
    assert same_result(said, expected) is same


def test_functions_tests_are_read_in_verls_form() -> None:
    """prime_code: an argument a line, and the result, as JSON."""
    cases = cases_of(json.dumps({"fn_name": "add", "inputs": ["1\n[2]"], "outputs": ["3"]}))
    assert (cases.function, cases.inputs, cases.outputs) == ("add", [[1, [2]]], [3])


@pytest.mark.parametrize(
    ("truth", "why"),
    [
        (None, "is not JSON with 'inputs' and 'outputs'"),
        ("72", "is not JSON with 'inputs' and 'outputs'"),
        ("[" * 100_000, "is not JSON with 'inputs' and 'outputs'"),
        ({"inputs": [], "outputs": []}, "must be a list with at least one test"),
        ({"inputs": ["1"], "outputs": []}, "has 1 inputs and 0 outputs"),
        ({"inputs": [1], "outputs": ["1"]}, "holds '1' as a text of stdin"),
        ({"fn_name": "f", "inputs": [1], "outputs": [1]}, "each of 'inputs' the list"),
    ],
)
def test_a_row_without_usable_tests_is_refused(truth: Any, why: str) -> None:
    text = truth if isinstance(truth, str) or truth is None else json.dumps(truth)
    with pytest.raises(UserError, match=why):
        cases_of(text)


def test_lines_of_a_test_may_be_listed() -> None:
    tests = {"inputs": [["2", "3"]], "outputs": [["5", ""]]}
    assert score("print(int(input()) + int(input()))", tests).score == 1.0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"partial": 0.5}, "partial = 0.5 .* must be true or false"),
        ({"timeout_s": 9.5}, "timeout_s = 9.5 .* below reward.timeout_s = 10"),
        ({"timeout_s": 0}, "timeout_s = 0 "),
        ({"memory_mib": 8}, "memory_mib = 8 .* use at least 64"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_functions([("code", 1.0, options)])


def test_what_is_for_all_functions_is_no_option_of_one() -> None:
    function = RewardFunction(name="code", options={"sandbox": "none"})
    with pytest.raises(UserError, match=r"functions\[0\].options.sandbox .* set reward.sandbox"):
        specs_of(RewardSection(functions=(function,)))
    with pytest.raises(UserError, match=r"it takes partial, timeout_s, memory_mib$"):
        check_functions([("code", 1.0, {"seconds": 1})])


def worker(**options: Any) -> RewardWorker:
    function = RewardFunction(name="code", options=options)
    return RewardWorker(RewardSection(functions=(function,)))


def test_it_works_in_the_process_of_a_reward_function() -> None:
    """With its limits and its environment; a row whose tests cannot be used is an error, and the
    rows after it are scored."""
    ours = worker(timeout_s=0.5)
    try:
        asked = [row(SOLVES, SUMS), row("while 1: pass", SUMS), row(SOLVES, "72")]
        said = [parts["code"] for parts in ours.score(asked, 10, kind="rows")]
        assert [one.outcome for one in said] == ["ok", "wrong", "error"]
        assert [one.score for one in said] == [1.0, 0.0, None]
        assert ours.score([row(SOLVES, SUMS)], 10, kind="rows")[0]["code"].score == 1.0
    finally:
        ours.close()


def test_hanging_tests_stay_within_the_time_of_a_row() -> None:
    """A row whose every test hangs is wrong; it must not become a timeout without a score."""
    tests = {"inputs": ["1\n"] * 50, "outputs": ["1\n"] * 50}
    function = RewardFunction(name="code", options={"timeout_s": 0.2, "partial": True})
    ours = RewardWorker(RewardSection(functions=(function,), timeout_s=1.8))
    try:
        said = ours.score([row("while True: pass", tests)], 1.8, kind="rows")[0]["code"]
        assert (said.outcome, said.score) == ("wrong", 0.0)
        assert said.seconds < 1.8
    finally:
        ours.close()


def test_a_sandbox_that_fails_is_an_error_not_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def run(self, *_: Any, **__: Any) -> Any:
            raise SandboxError("the sandbox failed: no more memory")

    monkeypatch.setattr(code, "find_sandbox", lambda setting: Broken())
    with pytest.raises(SandboxError):
        score(SOLVES, SUMS)


KILLED = """
import json, sys
from rlcore.rewards.types import RewardRow
from rlcore.rewards.worker import RewardWorker
from schemas.rl import RewardFunction, RewardSection
worker = RewardWorker(RewardSection(functions=(RewardFunction(name="code"),)))
print("ready", flush=True)
truth = json.dumps({"inputs": ["HOSTILE"], "outputs": ["1"]})
response = "```python\\nimport time; time.sleep(1000)\\n```"
worker.score([RewardRow("t", "s", response, truth, {}, "stop", 3, "p")], 100, "rows")
"""


@pytest.mark.slow
def test_no_program_outlives_a_killed_reward_worker() -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    whole = psutil.Process(process.pid)
    deadline = time.monotonic() + 300
    started: list[psutil.Process] = []
    while len(started) < 3 and time.monotonic() < deadline:  # watcher, function, the sandbox's
        time.sleep(0.05)
        started = whole.children(recursive=True)
    time.sleep(0.2)
    started = whole.children(recursive=True)
    assert len(started) >= 3
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    _, left = psutil.wait_procs(started, timeout=300)
    assert not left
