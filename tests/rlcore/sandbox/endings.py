"""Programs that end themselves, or must be ended: how each ends, and what it may have printed.

Each gets ``LIMITS``. A program that is not ended in time, or takes more than it may, would show it
by the status; one that escapes, by printing "escaped".
"""

from dataclasses import dataclass

from rlcore.sandbox.types import MIB, Limits, Ran, Status

LIMITS = Limits(
    seconds=1.0, memory_bytes=192 * MIB, output_bytes=MIB, files_bytes=8 * MIB, threads=8
)
ANY = -1
FAILED = (Status.EXITED, Status.KILLED, Status.MEMORY)  # by itself, not with exit code 0


@dataclass(frozen=True)
class Ending:
    program: str
    statuses: tuple[Status, ...]
    exit_code: int | None = None  # where it ends by itself; None: anything but 0; ANY

    def allows(self, ran: Ran) -> bool:
        """Whether ``ran`` is how this program may end."""
        if ran.status not in self.statuses or b"escaped" in ran.stdout:
            return False
        if ran.status is not Status.EXITED or self.exit_code == ANY:
            return True
        return ran.exit_code != 0 if self.exit_code is None else ran.exit_code == self.exit_code


def _ends(program: str, *statuses: Status, code: int | None = None) -> Ending:
    return Ending(program, statuses, code)


LOOPS = "while True: pass"
ENDINGS: dict[str, Ending] = {
    "loop": _ends(LOOPS, Status.TIMEOUT),
    "sleep": _ends("import time; time.sleep(1000)", Status.TIMEOUT),
    "reads_forever": _ends("import os\nwhile True: os.read(0, 1)", Status.TIMEOUT),
    "power": _ends("print(9 ** 9 ** 9)", Status.TIMEOUT, *FAILED),
    "regex": _ends("import re; re.match(r'(a+)+$', 'a' * 60 + 'b')", Status.TIMEOUT),
    "ignores_signals": _ends(
        "import signal\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n"
        "  except (OSError, ValueError): pass\n" + LOOPS,
        Status.TIMEOUT,
    ),
    "blocks_signals": _ends(
        "import signal; signal.pthread_sigmask(0, range(1, 65))\n" + LOOPS, Status.TIMEOUT
    ),
    "never_lets_go": _ends(
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass", Status.TIMEOUT
    ),
    "atexit_loops": _ends(
        f"import atexit\ndef f():\n  {LOOPS}\natexit.register(f)", Status.TIMEOUT
    ),
    "del_loops": _ends(f"class A:\n  def __del__(self):\n    {LOOPS}\na = A()", Status.TIMEOUT),
    "thread_stays": _ends(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
        Status.TIMEOUT,
    ),
    "thread_bomb": _ends(
        "import threading, time\nthreading.stack_size(65536)\n"
        "while True: threading.Thread(target=time.sleep, args=(9,)).start()",
        *(Status.THREADS, Status.TIMEOUT, *FAILED),
    ),
    "fork_bomb": _ends("import os\nwhile True: os.fork()", *FAILED),
    "patient_fork_bomb": _ends(
        "import os\nwhile True:\n  try: os.fork(); print('escaped', flush=True)\n"
        "  except OSError: pass",
        Status.TIMEOUT,
    ),
    "daemon": _ends(
        "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
        "print('escaped', flush=True); time.sleep(1000)",
        *FAILED,
    ),
    "memory_at_once": _ends("x = bytearray(2 ** 40)", Status.MEMORY),
    "memory_bomb": _ends("x = []\nwhile True: x.append(bytearray(1 << 20))", Status.MEMORY),
    "memory_doubling": _ends("x = 'x'\nwhile True: x += x", Status.MEMORY),
    "memory_in_threads": _ends(
        "import threading\ndef f():\n  x = []\n  while True: x.append(bytearray(1 << 20))\n"
        "for _ in range(4): threading.Thread(target=f).start()",
        *(Status.TIMEOUT, Status.EXITED, *FAILED),
        code=ANY,
    ),
    "memory_caught": _ends(
        "x = []\nwhile True:\n  try: x.append(bytearray(1 << 20))\n  except MemoryError: pass",
        Status.TIMEOUT,
    ),
    "shared_memory_bomb": _ends(
        "f = open('/dev/shm/x', 'wb')\nwhile True: f.write(b'x' * (1 << 20))",
        *(Status.FILES, *FAILED),
    ),
    "file_bomb": _ends(
        "f = open('x', 'wb')\nwhile True: f.write(b'x' * (1 << 20))", *(Status.FILES, *FAILED)
    ),
    "many_large_files": _ends(
        "import itertools\nfor i in itertools.count():\n"
        "  with open(str(i), 'wb') as f: f.write(b'x' * (1 << 20))",
        *(Status.FILES, *FAILED),
    ),
    "many_small_files": _ends(
        "import itertools\nfor i in itertools.count(): open(str(i), 'w').close()",
        *(Status.FILES, Status.TIMEOUT, *FAILED),
    ),
    "files_without_names": _ends(
        "import os, time\nopened = []\nfor i in range(40):\n  opened.append(open('x', 'wb'))\n"
        "  os.unlink('x')\n  opened[-1].write(b'x' * (1 << 20)); opened[-1].flush()\n"
        "time.sleep(1000)",
        *(Status.FILES, *FAILED),
    ),
    "files_in_memory_alone": _ends(
        "import ctypes, os, time\nc = ctypes.CDLL(None)\nfor i in range(20):\n"
        "  file = os.open('x', os.O_RDWR | os.O_CREAT); os.write(file, b'x' * (7 << 20))\n"
        "  c.mmap(None, ctypes.c_size_t(4096), 1, 2, file, ctypes.c_long(0))\n"
        "  os.close(file); os.unlink('x')\ntime.sleep(0.3); print('escaped')",
        *(Status.FILES, *FAILED),
    ),
    "files_on_their_way": _ends(
        "import array, os, socket\na, b = socket.socketpair()\nfor i in range(20):\n"
        "  file = os.open('x', os.O_RDWR | os.O_CREAT); os.write(file, b'x' * (7 << 20))\n"
        "  a.sendmsg([b'x'], [(1, 1, array.array('i', [file]))])\n"
        "  os.close(file); os.unlink('x')\nprint('escaped')",
        *(Status.FILES, *FAILED),
    ),
    "files_of_a_thread": _ends(
        "import ctypes, os, threading, time\nc = ctypes.CDLL(None)\ndef hold():\n"
        "  if c.syscall(436, 60000, 60001, 2): return\n  for i in range(20):\n"
        "    file = os.open('x', os.O_RDWR | os.O_CREAT); os.write(file, b'x' * (7 << 20))\n"
        "    os.unlink('x')\n  print('escaped', flush=True)\n"
        "one = threading.Thread(target=hold); one.start(); one.join(); 1 / 0",
        *(Status.FILES, *FAILED),
    ),
    "reserves_files": _ends(
        "import os\nfor i in range(500):\n"
        "  os.posix_fallocate(os.open(f'x{i % 40}', os.O_RDWR | os.O_CREAT), 0, 7 << 20)\n"
        "print('escaped')",
        *(Status.FILES, *FAILED),
    ),
    "deep_folders": _ends(
        "import os\nwhile True: os.mkdir('d' * 200); os.chdir('d' * 200)",
        *(Status.FILES, Status.TIMEOUT, *FAILED),
    ),
    "folders_without_permissions": _ends(
        "import os\nos.umask(0o777)\nos.mkdir('a')\nos.mkdir('b')\nos._exit(3)",
        Status.EXITED,
        code=3,
    ),
    "large_stdout": _ends("while True: print('x' * 65536)", Status.OUTPUT),
    "large_stderr": _ends("import sys\nwhile True: sys.stderr.write('x' * 65536)", Status.OUTPUT),
    "gigabyte_of_output": _ends(
        "import os\nfor _ in range(1024): os.write(1, b'x' * (1 << 20))", Status.OUTPUT
    ),
    "sys_exit": _ends("import sys; sys.exit(0)\nprint('escaped')", Status.EXITED, code=0),
    "os_exit": _ends("import os; os._exit(0)\nprint('escaped')", Status.EXITED, code=0),
    "quit": _ends("quit()", Status.EXITED, code=0),
    "exit_code": _ends("import sys; sys.exit(7)", Status.EXITED, code=7),
    "exit_message": _ends("import sys; sys.exit('because')", Status.EXITED, code=1),
    "exception": _ends("raise ValueError('x')", Status.EXITED, code=1),
    "keyboard_interrupt": _ends("raise KeyboardInterrupt", *FAILED),
    "raises_an_exception_that_raises": _ends(
        "class E(BaseException):\n  def __str__(self): raise self\nraise E", *FAILED
    ),
    "syntax_error": _ends("def f(:", Status.EXITED, code=1),
    "nul_in_source": _ends("print(1)\0", Status.EXITED, code=1),
    "lone_surrogate_in_source": _ends("print('\udcff')", *FAILED),
    "lone_surrogate_printed": _ends("print(chr(0xd800))", *FAILED),
    "nested_source": _ends("(" * 100_000 + ")" * 100_000, *FAILED),
    "nested_operators": _ends("x = " + "-" * 500_000 + "1", *FAILED),
    "large_source": _ends("x = '" + "x" * 10_000_000 + "'", Status.EXITED, code=0),
    "recursion": _ends("def f(): f()\nf()", Status.EXITED, code=1),
    "recursion_without_limit": _ends(
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
        *(Status.TIMEOUT, *FAILED),
    ),
    "recursion_in_c": _ends(
        "import sys\nsys.setrecursionlimit(10 ** 9)\nx = []\nfor _ in range(10 ** 6): x = [x]\n"
        "repr(x)",
        *(Status.TIMEOUT, *FAILED),
    ),
    "crash": _ends("import ctypes; ctypes.string_at(0)", Status.KILLED),
    "abort": _ends("import os; os.abort()", *FAILED),
    "kills_itself": _ends("import os; os.kill(os.getpid(), 9)", *FAILED),
    "kills_all": _ends("import os; os.kill(-1, 9)\nprint('escaped')", *FAILED),
    "stops_itself": _ends("import os; os.kill(os.getpid(), 19)\nprint('escaped')", *FAILED),
    "closes_all": _ends("import os; os.closerange(0, 4096); os._exit(0)", Status.EXITED, code=0),
    "closes_all_and_stays": _ends(
        "import os, time; os.closerange(0, 4096); time.sleep(1000)", Status.TIMEOUT
    ),
    "patches_builtins": _ends(
        "import builtins, json, os, sys\nfor m in (builtins, json, os, sys):\n"
        "  for n in list(vars(m)):\n    try: setattr(m, n, None)\n    except Exception: pass",
        *FAILED,
        code=ANY,
    ),
    "removes_modules": _ends(
        "import sys; sys.modules.clear(); raise SystemExit(0)", *FAILED, code=ANY
    ),
    "old_calling_convention": _ends(
        "import ctypes, platform, os\nif platform.machine() != 'x86_64': os._exit(3)\n"
        "pid = ctypes.CDLL(None).syscall(0x40000000 + 57)\n"  # fork by its number of x32
        "print('escaped')",
        *FAILED,
    ),
    "interpreter_again": _ends(
        # Where it may replace itself, it stays as confined as it was.
        "import os, sys\ncode = 'import os; os.fork(); print(\"escaped\")'\n"
        "os.execv(sys.executable, [sys.executable, '-c', code])",
        *FAILED,
    ),
    "random_bytes_as_code": _ends(
        "f = lambda: 0\nf.__code__ = f.__code__.replace(co_code=bytes(range(256)))\nf()",
        *(Status.TIMEOUT, *FAILED),
    ),
}
