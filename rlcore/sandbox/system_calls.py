"""The system calls that a sandboxed program has, as a seccomp filter.

A list of what is allowed, so that calls of future kernels are refused as well. Refused calls fail
with ENOSYS, on which libraries fall back, or EPERM where a program expects that they exist. What a
program can start is threads: no process, so nothing can outlive it and RLIMIT_AS bounds all of its
memory. It has no sockets but a pair connected to itself, no signals, and changes no attributes of a
file, which neither Landlock nor a read-only mount would check in each case. A file that it holds is
in the one table of descriptors that the supervisor counts: none is on its way through a socket
(sendmsg), or in a table of a thread's own. Where the filter is
loaded before the interpreter, by bubblewrap, a program may replace itself by what it can read; what
it becomes is confined as it was.
"""

import errno
import tempfile
from contextlib import suppress
from functools import cache
from typing import Any

from rlcore.sandbox.types import SandboxError

_FILES = """
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek open openat
    openat2 creat close dup dup2 dup3 flock fsync fdatasync sync_file_range ftruncate
    fadvise64 readahead stat fstat lstat newfstatat statx access faccessat faccessat2
    getdents getdents64 getcwd chdir fchdir rename renameat renameat2 mkdir mkdirat rmdir unlink
    unlinkat link linkat symlink symlinkat readlink readlinkat statfs fstatfs umask copy_file_range
    sendfile
"""
_MEMORY = "mmap mprotect munmap mremap madvise brk msync mincore membarrier"
_THREADS = """
    futex futex_waitv set_robust_list set_tid_address rseq gettid getpid getppid exit exit_group
    sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max
    sched_get_priority_min getcpu arch_prctl restart_syscall wait4 waitid
"""
_TIME = """
    nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getitimer setitimer
    alarm pause timer_create timer_settime timer_gettime timer_getoverrun timer_delete
    timerfd_create timerfd_settime timerfd_gettime
"""
_SIGNALS = """
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack
    signalfd signalfd4
"""
_WAITING = """
    poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
    epoll_pwait2 eventfd eventfd2 pipe pipe2 sendto recvfrom recvmsg shutdown getsockopt setsockopt
    getsockname getpeername
"""
_FACTS = """
    getuid geteuid getgid getegid getgroups getresuid getresgid getpgrp getpgid getsid getpriority
    getrusage getrlimit setrlimit sysinfo uname getrandom
"""
_ALLOWED = (_FILES, _MEMORY, _THREADS, _TIME, _SIGNALS, _WAITING, _FACTS)
# What programs handle by catching an OSError; ENOSYS would look like an old kernel.
_NOT_PERMITTED = """
    fork vfork socket connect bind listen accept accept4 kill tkill tgkill ptrace mount umount2
    unshare setns chroot pivot_root execveat chmod fchmod fchmodat chown fchown lchown fchownat
    utime utimes utimensat futimesat truncate setuid setgid setreuid setregid setresuid setresgid
    setgroups setsid setpgid mknod mknodat setpriority bpf perf_event_open keyctl add_key
    request_key memfd_create shmget shmat msgget semget
"""
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF
_CLONE_THREAD, _CLONE_FILES, _CLOSE_RANGE_UNSHARE = 0x10000, 0x400, 2
_WORD = 0xFFFFFFFF  # the kernel reads these arguments as 32 bits
# Of fcntl: nothing that makes the kernel send signals (F_SETOWN, F_SETSIG), no leases, no notices.
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIO*
_PRCTL = (3, 15, 16, 0x53564D41)  # PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_SET_VMA


@cache
def filter_code(may_exec: bool) -> bytes:
    """Return the filter as instructions of 8 bytes, for prctl(2) and for bubblewrap.

    ``may_exec``: also allow execve, for a filter that is loaded before the interpreter. Raises
    SandboxError where libseccomp is missing or does not know this machine.
    """
    try:
        import pyseccomp as seccomp  # loads the library at import

        rules = seccomp.SyscallFilter(defaction=seccomp.ERRNO(errno.ENOSYS))
        _add_rules(rules, seccomp, may_exec)
        with tempfile.TemporaryFile() as file:
            rules.export_bpf(file)
            file.seek(0)
            return file.read()
    except (OSError, RuntimeError) as error:
        raise SandboxError(f"libseccomp cannot be used ({error}); install libseccomp2") from None


def _add_rules(rules: Any, seccomp: Any, may_exec: bool) -> None:
    not_permitted = seccomp.ERRNO(errno.EPERM)

    def add(action: int, name: str, *conditions: tuple[int, int, int]) -> None:
        arguments = [
            seccomp.Arg(index, seccomp.MASKED_EQ, mask, value) for index, mask, value in conditions
        ]
        with suppress(ValueError):  # a library older than the call
            rules.add_rule(action, seccomp.resolve_syscall(seccomp.Arch.NATIVE, name), *arguments)

    for name in " ".join(_ALLOWED).split():
        add(seccomp.ALLOW, name)
    for name in _NOT_PERMITTED.split():
        add(not_permitted, name)
    add(seccomp.ALLOW if may_exec else not_permitted, "execve")
    # clone3 reads its flags from memory, where a filter cannot: ENOSYS makes libraries use clone.
    thread = _CLONE_THREAD | _CLONE_FILES
    add(seccomp.ALLOW, "clone", (0, thread, thread))
    for process in (0, _CLONE_FILES):
        add(not_permitted, "clone", (0, thread, process))
    add(seccomp.ALLOW, "close_range", (2, _CLOSE_RANGE_UNSHARE, 0))
    add(not_permitted, "fallocate")  # it takes gigabytes between two looks of the supervisor
    for name, index, values in (("fcntl", 1, _FCNTL), ("ioctl", 1, _IOCTL), ("prctl", 0, _PRCTL)):
        for value in values:
            add(seccomp.ALLOW, name, (index, _WORD, value))
    # Of this process only: 0, not another one of the same user.
    for name in ("prlimit64", "sched_setaffinity"):
        add(seccomp.ALLOW, name, (0, _WORD, 0))
    # Connected to each other: a datagram socket could send to any address.
    stream = (1, _SOCK_TYPE, _SOCK_STREAM)
    add(seccomp.ALLOW, "socketpair", (0, _WORD, _AF_UNIX), stream)
