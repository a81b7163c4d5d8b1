"""What a program gets, and what comes back, the same at every level."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlcore.sandbox.probe import levels_here
from rlcore.sandbox.sandbox import Sandbox
from rlcore.sandbox.types import MIB, Level, Limits, Ran, SandboxError, Status
from tests.kernel import param

LEVELS = [param(level) for level in (*levels_here(), Level.NONE)]


@pytest.fixture(params=LEVELS, scope="module")
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return Sandbox(request.param)


def test_stdin_stdout_stderr_and_exit_code(sandbox: Sandbox) -> None:
    ran = sandbox.run(
        "import sys\nprint(input())\nprint('é', file=sys.stderr)\nsys.exit(3)",
        stdin="ü\n",
    )
    assert (ran.status, ran.exit_code, ran.succeeded) == (Status.EXITED, 3, False)
    assert ran.stdout.decode() == "ü\n"
    assert ran.stderr.decode() == "é\n"


def test_a_program_is_run_as_a_script(sandbox: Sandbox) -> None:
    ran = sandbox.run(
        "import sys\nif __name__ == '__main__': print(sys.argv, __file__, globals()['sys'] is sys)"
    )
    assert ran.stdout == b"['program.py'] program.py True\n"


def test_what_ordinary_programs_use_works(sandbox: Sandbox) -> None:
    """A list of system calls that is too short would make right programs wrong."""
    ran = sandbox.run(
        """
import asyncio, bisect, collections, concurrent.futures, ctypes, datetime, decimal, fractions
import functools, hashlib, heapq, itertools, json, math, random, re, sqlite3, statistics, string
import sys, tempfile, threading, time, uuid, zlib, shutil, pathlib, queue, zoneinfo, secrets, glob
sys.setrecursionlimit(10**6); threading.stack_size(64 * 2**20)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
done = []
thread = threading.Thread(target=lambda: done.append(depth(50_000))); thread.start(); thread.join()
async def later(): await asyncio.sleep(0.001); return 1
with concurrent.futures.ThreadPoolExecutor(3) as pool: done += pool.map(abs, [-1, 2])
done.append(asyncio.run(later()))
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "x"); path.write_text("y"); done.append(path.read_text())
    done.append(len(glob.glob(folder + "/*"))); path.rename(path.with_name("z"))
done.append(sqlite3.connect(":memory:").execute("select 7").fetchone()[0])
time.sleep(0.001); datetime.datetime.now(); uuid.uuid4(); secrets.token_hex(); random.random()
signal = __import__("signal"); signal.signal(signal.SIGALRM, lambda *_: done.append("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.001); time.sleep(0.1)
print(done)
exit()
""",
        limits=Limits(memory_bytes=512 * MIB),
    )
    assert ran.succeeded, ran.stderr.decode()
    assert ran.stdout == b"[50000, 1, 2, 1, 'y', 1, 7, 'alarm']\n"


def test_the_same_program_prints_the_same(sandbox: Sandbox) -> None:
    """Hashes that differ by process would make a resumed run differ from one that was not."""
    program = "print({str(n) for n in range(50)}, hash('x'))"
    assert sandbox.run(program).stdout == sandbox.run(program).stdout


def test_a_program_that_reads_nothing_or_everything(sandbox: Sandbox) -> None:
    large = "x" * 10 * MIB
    assert sandbox.run("print(1)", large).stdout == b"1\n"
    counted = sandbox.run("import sys; print(len(sys.stdin.read()))", large)
    assert counted.stdout == b"%d\n" % (10 * MIB)


def test_output_is_kept_up_to_its_limit(sandbox: Sandbox) -> None:
    limits = Limits(output_bytes=1000)
    whole = sandbox.run("print('x' * 999)", limits=limits)
    assert (whole.status, len(whole.stdout)) == (Status.EXITED, 1000)
    cut = sandbox.run("print('x' * 1000)", limits=limits)
    assert (cut.status, len(cut.stdout)) == (Status.OUTPUT, 1000)


def test_output_before_a_timeout_is_kept(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    ran = sandbox.run("print('begun', flush=True)\nwhile True: pass", limits=Limits(seconds=0.2))
    assert (ran.status, ran.stdout, ran.exit_code) == (Status.TIMEOUT, b"begun\n", None)
    assert 0.2 <= time.monotonic() - begun < 10


def test_a_signal_is_reported(sandbox: Sandbox) -> None:
    ran = sandbox.run("import ctypes; ctypes.string_at(0)")
    assert (ran.status, ran.exit_code, ran.signal) == (Status.KILLED, None, 11)


def test_the_folder_is_empty_again_each_time(sandbox: Sandbox) -> None:
    sandbox.run("open('left', 'w').write('x')")
    assert sandbox.run("import os; print(os.listdir())").stdout == b"[]\n"


def test_programs_run_side_by_side(sandbox: Sandbox) -> None:
    """Several reward workers share a machine; none waits for or disturbs another."""

    def run(number: int) -> Ran:
        return sandbox.run(f"open('x', 'w').write('{number}'); print(open('x').read())")

    with ThreadPoolExecutor(8) as pool:
        said = [ran.stdout for ran in pool.map(run, range(12))]
    assert said == [b"%d\n" % number for number in range(12)]


def test_nothing_stays_open(sandbox: Sandbox) -> None:
    """20,000 rows with a descriptor left by each would end a worker."""
    sandbox.run("pass")
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        sandbox.run("print(1)")
    assert os.listdir("/proc/self/fd") == before


def test_a_sandbox_that_cannot_start_is_no_failure_of_the_program(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program must not be wrong because of us."""
    monkeypatch.setattr(sandbox, "_executable", sandbox._executable.with_name("python0"))
    with pytest.raises(SandboxError, match="the sandbox"):
        sandbox.run("pass")
