"""The first code that runs in a sandbox: gives up every right, then runs the program in its place.

It is compiled into the sandbox's copy of the interpreter, which has no site-packages, and imports
the standard library only. Until "ready" is written nothing of the program has run, so what
goes wrong before is a failure of the sandbox and what goes wrong after is one of the program.

Arguments: the descriptor of the setup (JSON, one line; its other end stays open for as long as the
supervisor lives) and that of the answer.
"""

import builtins
import os
import resource
import select
import sys

MEMORY_EXIT = 92  # exit code for a MemoryError that the program did not catch


def main():
    """Read the setup, confine this process, run the program."""
    setup_fd, answer_fd = int(sys.argv[1]), int(sys.argv[2])
    # json is the interpreter's slowest import here; literals of the parent need none.
    low, high = sorted((setup_fd, answer_fd))
    for start, end in ((3, low), (low + 1, high), (high + 1, 1 << 20)):  # bubblewrap's
        os.closerange(start, end)
    with open(setup_fd, "rb", closefd=False) as file:
        line = file.readline()
    if not line.endswith(b"\n"):  # the supervisor was killed
        os._exit(1)
    setup = eval(line, {"__builtins__": {}})
    try:
        _confine(setup)
        # The kernel kills this process with its supervisor from here on, so it died before or will
        # be noticed now.
        watch = select.poll()
        watch.register(setup_fd, select.POLLIN)
        if watch.poll(0):
            os._exit(1)
    except Exception as error:  # noqa: BLE001 - any failure here is the sandbox's; reported
        os.write(answer_fd, f"{type(error).__name__}: {error}"[:1000].encode(errors="replace"))
        os._exit(1)
    os.write(answer_fd, b"ready")
    os.close(answer_fd)
    os.close(setup_fd)
    _run(setup["program"])


def _confine(setup):
    os.umask(0o077)
    if (uid := setup.get("uid")) is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.chdir(setup["directory"])
    for name, value in setup["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        most = value + 1 if name == "RLIMIT_CPU" else value  # SIGXCPU, then SIGKILL
        resource.setrlimit(kind, (value, min(most, hard) if hard >= 0 else most))
    if setup.get("parent"):
        # After the change of user, which clears it.
        _checked(_c().prctl(1, 9, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if "landlock" in setup:
        _landlock(setup["landlock"])
    if "filter" in setup:
        _filter_calls(setup["filter"])


def _c():
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _checked(result, what):
    if result < 0:
        import ctypes

        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


# Numbers of linux/landlock.h; the system calls have these on every architecture.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_BITS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15}  # access rights on files; 16 from ABI 5 on


def _landlock(rules):
    """Allow no access to files but that of ``rules``: (path, "read" or "write") pairs."""
    import ctypes

    c = _c()
    abi = _checked(c.syscall(_CREATE, None, ctypes.c_size_t(0), 1), "Landlock")
    bits = _BITS_BY_ABI.get(abi, 16)
    everything = (1 << bits) - 1
    # struct landlock_ruleset_attr: handled files (ABI 1), network (4), scopes (6).
    fields = (ctypes.c_uint64 * 3)(everything, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _checked(
        c.syscall(_CREATE, fields, ctypes.c_size_t(size), 0), "landlock_create_ruleset"
    )
    for path, kind in rules:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        directory = os.path.isdir(path)
        # write a file 2, read a file 4, list 8; truncate 1 << 14; no devices, no sockets
        allowed = {"read": 4 | 8, "file": 2 | 4, "write": everything & ~(1 | 0x0A40)}[kind]
        if not directory:
            allowed &= 2 | 4 | (1 << 14 if bits > 14 else 0)
        rule = allowed.to_bytes(8, sys.byteorder) + opened.to_bytes(4, sys.byteorder)
        _checked(c.syscall(_ADD, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(opened)
    _checked(c.prctl(38, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _checked(c.syscall(_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _filter_calls(code):
    """Load the seccomp filter ``code``: instructions of 8 bytes each."""
    import ctypes

    class FilterProgram(ctypes.Structure):  # struct sock_fprog
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    program = FilterProgram(len(code) // 8, code)
    _checked(_c().prctl(38, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _checked(_c().prctl(22, 2, ctypes.byref(program), 0, 0), "prctl(PR_SET_SECCOMP)")


def _run(program):
    """Run ``program`` as ``__main__``, as ``python program.py`` would."""
    builtins.exit = builtins.quit = sys.exit  # what the module site would add
    sys.argv = ["program.py"]
    sys.path.insert(0, "")
    module = type(sys)("__main__")
    module.__dict__.update(__file__="program.py", __builtins__=builtins)
    sys.modules["__main__"] = module
    try:
        exec(compile(program, "program.py", "exec"), module.__dict__)
    except MemoryError:
        os._exit(MEMORY_EXIT)


if __name__ == "__main__":
    main()
