"""A sandbox of one level: starts an interpreter, feeds the program, reads what it writes, and ends
it when it exceeds a limit."""

import json
import os
import select
import selectors
import signal
import subprocess
import time
from contextlib import ExitStack, nullcontext, suppress
from io import FileIO
from pathlib import Path
from stat import S_ISREG
from typing import IO

from rlcore.sandbox.inside import MEMORY_EXIT
from rlcore.sandbox.interpreter import interpreter_in
from rlcore.sandbox.levels import Links, start_of
from rlcore.sandbox.slots import Slot, slot, state_directory, sweep, used
from rlcore.sandbox.system_calls import filter_code
from rlcore.sandbox.types import Level, Limits, Ran, SandboxError, Status

MAX_ENTRIES = 2000  # files and folders that a program may make
_MAPPED = 8  # files without a name that it may hold in memory alone; their size cannot be seen
_START_S = 30.0  # for the interpreter to be up; the program's own time begins after it
_LOOK_S = 0.05  # between looks at files and threads
_REAP_S = 2.0  # for bubblewrap to notice that the program has ended
_END_S = 10.0  # for the kernel to end what was killed
_CHUNK = 1 << 18


class Sandbox:
    """Runs programs at one level; safe to use from several threads and processes."""

    def __init__(self, level: Level, directory: Path | None = None) -> None:
        """Prepare ``level``; whether it holds is for ``rlcore.sandbox.probe`` to find out.

        ``directory``: where interpreter, locks and scratch folders are, by default the one of this
        user. Raises SandboxError where these cannot be made.
        """
        self.level = level
        self._directory = state_directory() if directory is None else directory
        self._executable = interpreter_in(self._directory)
        filter_code(may_exec=False)
        sweep(self._directory)

    def run(
        self,
        program: str,
        stdin: str | bytes = b"",
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> Ran:
        """Return how ``program``, Python source, ended, in an empty working directory; no process
        of it is left.

        Raises SandboxError when the sandbox failed.
        """
        given = stdin if isinstance(stdin, bytes) else stdin.encode("utf-8", "surrogatepass")
        # All that a slot is for, bubblewrap has for an ordinary user.
        needs_none = self.level is Level.NAMESPACES and os.geteuid() != 0
        held = nullcontext() if needs_none else slot(self._directory)
        with held as place, ExitStack() as stack:
            run = _Run(stack, self.level, self._executable, place, program, limits)
            try:
                status = run.follow(given)
            finally:
                run.end()
            return run.result(status)


class _Run:
    """One started process with its pipes; ``stack`` closes them."""

    def __init__(
        self,
        stack: ExitStack,
        level: Level,
        executable: Path,
        place: Slot | None,
        program: str,
        limits: Limits,
    ) -> None:
        self._level, self._place, self._limits = level, place, limits
        (setup, self._setup), (self._answer, answer), (self._info, info) = (
            _pipe(stack) for _ in range(3)
        )
        filtered, code = _pipe(stack)
        code.write(filter_code(may_exec=True))  # less than a pipe holds
        code.close()
        theirs = (setup, answer, info, filtered)
        links = Links(*(file.fileno() for file in theirs))
        command, environment, said = start_of(level, executable, place, limits, links)
        self._line = ascii({**said, "program": program}).encode() + b"\n"
        try:
            self._process = stack.enter_context(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[file.fileno() for file in theirs],
                    cwd="/",
                    start_new_session=True,
                    bufsize=0,
                )
            )
        except OSError as error:
            raise SandboxError(f"the sandbox cannot be started: {error}") from None
        # Before it is waited for, should anything below fail.
        stack.callback(self._process.kill)
        for file in theirs:
            file.close()
        self._handle = stack.enter_context(FileIO(os.pidfd_open(self._process.pid), "rb"))
        self._first: FileIO | None = None  # the program, in bubblewrap
        self._stack = stack
        self._watched = self._process.pid  # of the program or its parent, as seen out here
        self._began: float | None = None
        self._read = {"answer": bytearray(), "stdout": bytearray(), "stderr": bytearray()}

    def follow(self, stdin: bytes) -> Status | None:
        """Serve the pipes until the program ends (None) or exceeds a limit (which one)."""
        process, limits = self._process, self._limits
        with selectors.DefaultSelector() as selector:
            _register(selector, self._answer, "answer")
            _register(selector, self._setup, memoryview(self._line))
            _register(selector, process.stdin, memoryview(stdin))
            selector.register(self._handle, selectors.EVENT_READ, "end")
            deadline = time.monotonic() + _START_S
            look = deadline
            while (now := time.monotonic()) < deadline:
                if self._began is None and self._answered():
                    self._began, deadline, look = now, now + limits.seconds, now + _LOOK_S
                    # Not before, so that what is read is the program's.
                    _register(selector, process.stdout, "stdout")
                    _register(selector, process.stderr, "stderr")
                if now >= look:
                    if status := self._excess():
                        return status
                    look = time.monotonic() + _LOOK_S
                for key, _ in selector.select(max(min(deadline, look) - now, 0)):
                    if key.data == "end":
                        return self._drained()
                    if not self._served(key, selector):
                        return Status.OUTPUT
            return Status.TIMEOUT

    def _excess(self) -> Status | None:
        """Return which limit that the kernel does not hold the program exceeds, if any."""
        pid, limits = self._watched, self._limits
        if self._level is Level.NAMESPACES:
            return Status.FILES if _inodes(pid) > MAX_ENTRIES else None
        assert self._place is not None, "the other levels have one"
        size, entries = used(self._place.scratch, MAX_ENTRIES)
        size += _unlinked(pid) + _mapped(pid) * limits.files_bytes / _MAPPED
        if size > limits.files_bytes or entries > MAX_ENTRIES:
            return Status.FILES
        return Status.THREADS if _threads(pid) > limits.threads else None

    def _answered(self) -> bool:
        """Whether the program has begun, known from when the answer is closed."""
        if not self._answer.closed:
            return False
        answer = bytes(self._read["answer"])
        if answer != b"ready":
            said = answer or bytes(self._read["stderr"]) or b"it said nothing"
            said = " ".join(said.decode(errors="replace").split())[:500]
            raise SandboxError(f"the sandbox failed: {said}")
        # Written before the program was started; nothing where there is no bubblewrap.
        os.set_blocking(self._info.fileno(), False)
        if info := self._info.read(_CHUNK):
            first = json.loads(info)["child-pid"]
            with suppress(ProcessLookupError):
                self._first = self._stack.enter_context(FileIO(os.pidfd_open(first), "rb"))
                self._watched = first
        return True

    def _served(self, key: selectors.SelectorKey, selector: selectors.BaseSelector) -> bool:
        """Read from or write to one pipe; return False when the program has written too much."""
        file, data = key.fileobj, key.data
        assert isinstance(file, FileIO)
        if isinstance(data, memoryview):
            try:
                rest = data[os.write(file.fileno(), data[:_CHUNK]) :]
            except BlockingIOError:
                return True
            except BrokenPipeError:  # it reads no further
                rest = memoryview(b"")
            if rest:
                selector.modify(file, selectors.EVENT_WRITE, rest)
                return True
            selector.unregister(file)
            if file is not self._setup:  # whose end means ours
                file.close()
            return True
        part = file.read(_CHUNK)
        if part is None:
            return True
        self._read[data] += part
        if not part:
            selector.unregister(file)
            file.close()
        return len(self._read[data]) <= self._limits.output_bytes

    def _drained(self) -> Status | None:
        """Read what the ended process has left in its pipes."""
        status = None
        ends = {"answer": self._answer, "stdout": self._process.stdout}
        for name, file in {**ends, "stderr": self._process.stderr}.items():
            assert file is not None
            if file.closed:
                continue
            os.set_blocking(file.fileno(), False)
            while status is None and (part := file.read(_CHUNK)):
                self._read[name] += part
                if len(self._read[name]) > self._limits.output_bytes:
                    status = Status.OUTPUT
        if self._began is None:
            self._answer.close()
            self._began = time.monotonic() if self._answered() else None
        return status

    def end(self) -> None:
        """End every process of the run and wait until the kernel has done so."""
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first.fileno(), signal.SIGKILL)
            _ended_within(self._handle, _REAP_S)  # bubblewrap, after it has reaped the program
        # With what has not left its session. Not reaped yet, so the id is still its own.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for handle in (self._first, self._handle):
            if handle is not None and not _ended_within(handle, _END_S):
                raise SandboxError(f"a killed program did not end within {_END_S:g} s")
        self._process.wait()

    def result(self, status: Status | None) -> Ran:
        """Return how the program ended; ``status``: the limit it exceeded, if any."""
        if self._began is None:
            raise SandboxError(f"the sandbox did not start within {_START_S:g} s")
        code, number = self._process.returncode, None
        if code > 128 and self._first is not None:  # as bubblewrap reports signals
            code = 128 - code
        if code < 0:
            code, number = None, -code
        if status is None:
            if code == MEMORY_EXIT:
                status = Status.MEMORY
            elif number == signal.SIGXCPU:
                status = Status.TIMEOUT
            else:
                status = Status.EXITED if number is None else Status.KILLED
        most = self._limits.output_bytes
        return Ran(
            status,
            code if status is Status.EXITED else None,
            number if status is Status.KILLED else None,
            bytes(self._read["stdout"][:most]),
            bytes(self._read["stderr"][:most]),
        )


def _register(selector: selectors.BaseSelector, file: IO[bytes] | None, data: object) -> None:
    """Watch ``file`` for reading or, if ``data`` is what to write, for writing."""
    assert file is not None
    os.set_blocking(file.fileno(), False)
    writes = isinstance(data, memoryview)
    selector.register(file, selectors.EVENT_WRITE if writes else selectors.EVENT_READ, data)


def _pipe(stack: ExitStack) -> tuple[FileIO, FileIO]:
    read, write = os.pipe()
    return stack.enter_context(FileIO(read, "rb")), stack.enter_context(FileIO(write, "wb"))


def _ended_within(handle: FileIO, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _inodes(pid: int) -> int:
    """Return how many files the tmpfs of a namespace hold; 0 once its process has ended."""
    count = 0
    with suppress(OSError):
        for path in ("tmp", "dev/shm"):
            found = os.statvfs(f"/proc/{pid}/root/{path}")
            count += found.f_files - found.f_ffree
    return count


def _threads(pid: int) -> int:
    """Return the number of a process's threads; 0 once it has ended."""
    with suppress(OSError):
        # proc(5): after the name, which may hold anything, num_threads is the 18th field.
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[17])
    return 0


def _unlinked(pid: int) -> int:
    """Return the bytes of files that a process holds open and that have no name any more."""
    total = 0
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            found = os.stat(f"/proc/{pid}/fd/{name}")
            if S_ISREG(found.st_mode) and found.st_nlink == 0:
                total += found.st_blocks * 512
    return total


def _mapped(pid: int) -> int:
    """Return how many files a process has in its memory that have no name any more."""
    found = set()
    with suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace", encoding="utf-8")
        for line in maps.splitlines():
            if line.endswith(" (deleted)"):
                device, inode = line.split()[3:5]
                if not device.startswith("00:01"):  # shared memory without a file
                    found.add((device, inode))
    return len(found)
