"""What hostile programs try, one function each; run inside a sandbox, in one go or one at a time.

A function returns whether it got what it wanted; an exception means that it was refused. What is
outside (files, processes, servers) is named in the facts, JSON on stdin; the names to run follow in
"run". The names of those that succeeded are printed.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading

X86 = platform.machine() == "x86_64"
C = ctypes.CDLL(None, use_errno=True)
ATTACKS = {}
NUMBERS = {  # x86_64, aarch64
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "acct": (163, 89),
    "syslog": (103, 116),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "personality": (135, 92),
    "fanotify_init": (300, 262),
    "inotify_init1": (294, 26),
    "mknodat": (259, 33),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
    "clone3": (435, 435),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setxattr": (188, 5),
    "landlock_restrict_self": (446, 446),
    "seccomp": (317, 277),
    "vmsplice": (278, 75),
    "settimeofday": (170, 170),
    "sethostname": (170, 161),
    "quotactl": (179, 60),
}


def attack(function):
    ATTACKS[function.__name__] = function
    return function


def system_call(name, *arguments):
    """Whether the kernel did more than to refuse: any other error means that it looked."""
    ctypes.set_errno(0)
    result = C.syscall(NUMBERS[name][0 if X86 else 1], *arguments)
    return result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)


for _name in NUMBERS:
    ATTACKS[f"call_{_name}"] = lambda _, name=_name: system_call(name, 0, 0, 0, 0, 0, 0)


def reads(path):
    with open(path, "rb") as file:
        return bool(file.read(1))


def lists(path):
    return bool(os.listdir(path))


def _reading(name, path):
    ATTACKS[f"reads_{name}"] = lambda facts: reads(path.format(**facts))


for _name, _path in {
    "shadow": "/etc/shadow",
    "passwd": "/etc/passwd",
    "hosts": "/etc/hosts",
    "the_repository": "{repository}/rlcore/sandbox/inside.py",
    "the_tests": "{repository}/tests/rlcore/sandbox/attacks.py",
    "a_file_of_everybody": "{everybodys}",
    "a_file_of_the_user": "{own}",
    "by_dots": "../../../../../../../..{everybodys}",
    "environment_of_parent": "/proc/{pid}/environ",
    "command_of_parent": "/proc/{pid}/cmdline",
    "memory_of_parent": "/proc/{pid}/mem",
    "maps_of_parent": "/proc/{pid}/maps",
    "root_of_parent": "/proc/{pid}/root{everybodys}",
    "files_of_parent": "/proc/{pid}/cwd/pyproject.toml",
    "environment_of_init": "/proc/1/environ",
    "own_root": "/proc/self/root{everybodys}",
    "kernel_log": "/dev/kmsg",
    "a_disk": "/dev/vda",
    "memory_device": "/dev/mem",
    "terminal": "/dev/tty",
    "kernel_key_list": "/proc/keys",
    "kernel_symbols": "/proc/kallsyms",
    "kernel_core": "/proc/kcore",
    "other_slot": "{slots}/7/secret",
    "lock_of_slot": "{slots}/../locks/0",
    "docker_socket": "/var/run/docker.sock",
    "cgroup": "/sys/fs/cgroup/cgroup.procs",
}.items():
    _reading(_name, _path)


@attack
def lists_temporary_folder_of_others(facts):
    return os.path.basename(facts["folder"]) in os.listdir(os.path.dirname(facts["folder"]))


@attack
def lists_processes(facts):
    return str(facts["pid"]) in os.listdir("/proc")


@attack
def lists_homes(facts):
    return lists("/root") or lists("/home")


@attack
def finds_variables(facts):
    return bool({"HOSTILE_SECRET", "USER", "VIRTUAL_ENV", "PYTHONPATH"} & os.environ.keys())


@attack
def writes_outside(facts):
    with open(os.path.join(facts["folder"], "written"), "w") as file:
        file.write("x")
    return True


@attack
def writes_to_the_interpreter(facts):
    with open(os.path.join(os.path.dirname(os.__file__), "os.py"), "a") as file:
        file.write("#")
    return True


@attack
def removes_outside(facts):
    os.unlink(facts["everybodys"])
    return True


@attack
def renames_outside(facts):
    os.rename(facts["everybodys"], facts["everybodys"] + ".moved")
    return True


@attack
def truncates_outside(facts):
    os.truncate(facts["writable"], 0)
    return True


@attack
def changes_mode_outside(facts):
    os.chmod(facts["writable"], 0o777)
    return True


@attack
def changes_times_outside(facts):
    os.utime(facts["writable"], (1, 1))
    return True


@attack
def changes_mode_of_the_interpreter(facts):
    os.chmod(os.__file__, 0)
    return True


@attack
def makes_setuid_file(facts):
    with open("setuid", "w"):
        pass
    os.chmod("setuid", 0o6777)
    return True


@attack
def follows_symlink(facts):
    os.symlink(facts["everybodys"], "link")
    return reads("link")


@attack
def writes_through_symlink(facts):
    os.symlink(facts["writable"], "writable-link")
    with open("writable-link", "a") as file:
        file.write("x")
    return True


@attack
def follows_hardlink(facts):
    os.link(facts["writable"], "hard")
    return reads("hard")


@attack
def links_into_the_outside(facts):
    with open("mine", "w"):
        pass
    os.link("mine", os.path.join(facts["folder"], "hard"))
    return True


@attack
def makes_device(facts):
    os.mknod("device", 0o600 | 0o020000, os.makedev(1, 1))
    return True


@attack
def opens_directory_upward(facts):
    descriptor = os.open("..", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return bool(os.open(".." + facts["everybodys"], os.O_RDONLY, dir_fd=descriptor))
    finally:
        os.close(descriptor)


@attack
def finds_open_descriptors(facts):
    """Look for something left open: files, sockets, a folder to escape through."""
    found = []
    for descriptor in range(3, 1024):
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            found.append(descriptor)
    return bool(found)


def _network(name, family, kind, address):
    def tried(facts):
        with socket.socket(family, kind) as link:
            link.settimeout(1)
            link.connect(address(facts))
            return link.send(b"x") == 1

    ATTACKS[f"network_{name}"] = tried


_network("tcp", socket.AF_INET, socket.SOCK_STREAM, lambda f: ("127.0.0.1", f["port"]))
_network("tcp6", socket.AF_INET6, socket.SOCK_STREAM, lambda f: ("::1", f["port"]))
_network("udp", socket.AF_INET, socket.SOCK_DGRAM, lambda f: ("127.0.0.1", f["port"]))
_network("dns", socket.AF_INET, socket.SOCK_DGRAM, lambda f: ("8.8.8.8", 53))
_network("unix", socket.AF_UNIX, socket.SOCK_STREAM, lambda f: f["unix"])
_network("abstract", socket.AF_UNIX, socket.SOCK_STREAM, lambda f: "\0" + f["abstract"])
_network("raw", socket.AF_INET, socket.SOCK_RAW, lambda f: ("127.0.0.1", 0))


@attack
def network_netlink(facts):
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()
    return True


@attack
def network_kernel_crypto(facts):
    socket.socket(38, socket.SOCK_SEQPACKET, 0).close()  # AF_ALG
    return True


@attack
def network_listens(facts):
    socket.create_server(("127.0.0.1", 0)).close()
    return True


@attack
def network_datagram_pair_to_an_address(facts):
    ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return ours.sendto(b"x", "\0" + facts["abstract_datagram"]) == 1


@attack
def network_stream_pair_to_an_address(facts):
    ours, _ = socket.socketpair()
    ours.connect("\0" + facts["abstract"])
    return True


@attack
def signals_supervisor(facts):
    os.kill(facts["pid"], 0)
    return True


@attack
def signals_all(facts):
    os.kill(-1, signal.SIGCONT)
    return True


@attack
def signals_group(facts):
    os.killpg(0, signal.SIGCONT)
    return True


@attack
def signals_parent(facts):
    os.kill(os.getppid(), signal.SIGCONT)
    return True


@attack
def signals_by_pidfd(facts):
    signal.pidfd_send_signal(os.pidfd_open(facts["pid"]), signal.SIGCONT)
    return True


@attack
def signals_by_file_owner(facts):
    read, _ = os.pipe()
    fcntl.fcntl(read, fcntl.F_SETOWN, facts["pid"])
    return True


@attack
def signals_by_queue(facts):
    return C.sigqueue(facts["pid"], 0, None) == 0


@attack
def limits_of_supervisor(facts):
    resource.prlimit(facts["pid"], resource.RLIMIT_NOFILE, (4, 4))
    return True


@attack
def affinity_of_supervisor(facts):
    os.sched_setaffinity(facts["pid"], {0})
    return True


@attack
def lifts_its_limits(facts):
    """Raise any hard limit."""
    for kind in ("AS", "CPU", "FSIZE", "NOFILE", "CORE"):
        number = getattr(resource, f"RLIMIT_{kind}")
        hard = resource.getrlimit(number)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, (hard + 1, hard + 1))
            return True
    return False


@attack
def outlives_the_supervisor(facts):
    return C.prctl(1, 0, 0, 0, 0) == 0  # PR_SET_PDEATHSIG


@attack
def traces_itself_by_others(facts):
    return C.prctl(0x59616D61, -1, 0, 0, 0) == 0  # PR_SET_PTRACER


@attack
def forks(facts):
    return started(os.fork)


@attack
def forks_pty(facts):
    return started(lambda: os.forkpty()[0])


def started(fork):
    pid = fork()
    if pid == 0:
        os._exit(0)
    return True


@attack
def vforks(facts):
    return X86 and C.syscall(58) >= 0


@attack
def clones_with_shared_memory(facts):
    """CLONE_VM | SIGCHLD: a process, no thread."""
    number = 56 if X86 else 220
    ctypes.set_errno(0)
    pid = C.syscall(number, signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid > 0


@attack
def clones_into_new_namespaces(facts):
    number = 56 if X86 else 220
    pid = C.syscall(number, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)  # CLONE_NEWUSER
    if pid == 0:
        os._exit(0)
    return pid > 0


@attack
def runs_a_shell(facts):
    return subprocess.run(["/bin/sh", "-c", "true"], check=False).returncode == 0


@attack
def runs_by_os_system(facts):
    return os.system("true") == 0


@attack
def spawns(facts):
    return os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}) > 0


@attack
def starts_daemon(facts):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        os._exit(0)
    return True


@attack
def becomes_root(facts):
    os.setuid(0)
    return True


@attack
def changes_groups(facts):
    os.setgroups([0])
    return True


@attack
def runs_as_root(facts):
    return 0 in (os.getuid(), os.geteuid(), os.getgid(), os.getegid())


@attack
def leaves_by_chroot(facts):
    os.mkdir("jail")
    os.chroot("jail")
    return True


@attack
def makes_namespaces(facts):
    return C.unshare(0x10000000 | 0x00020000) == 0  # CLONE_NEWUSER | CLONE_NEWNS


@attack
def shares_memory_by_name(facts):
    from multiprocessing import shared_memory

    block = shared_memory.SharedMemory("hostile", create=True, size=2**30)
    block.buf[:: mmap.PAGESIZE] = b"x" * (2**30 // mmap.PAGESIZE)
    return True


@attack
def maps_more_than_its_memory(facts):
    mmap.mmap(-1, facts["memory_bytes"])
    return True


@attack
def allocates_more_than_its_memory(facts):
    return len(bytearray(facts["memory_bytes"])) > 0


@attack
def writes_larger_file_than_allowed(facts):
    with tempfile.TemporaryFile() as file:
        file.seek(facts["files_bytes"])
        file.write(b"x" * 2)
        file.flush()
    return True


@attack
def reserves_larger_file_than_allowed(facts):
    with open("reserved", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, facts["files_bytes"] + 1)
    return True


@attack
def enlarges_pipe(facts):
    read, _ = os.pipe()
    fcntl.fcntl(read, 1031, 2**20)  # F_SETPIPE_SZ
    return True


@attack
def opens_many_files(facts):
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(2000)]
    return bool(opened)


@attack
def locks_memory(facts):
    return C.mlockall(1) == 0


@attack
def injects_into_terminal(facts):
    fcntl.ioctl(0, 0x5412, struct.pack("b", 10))  # TIOCSTI
    return True


@attack
def mounts_in_thread(facts):
    """A thread is confined as well."""
    done = []
    thread = threading.Thread(target=lambda: done.append(system_call("mount", 0, 0, 0, 0, 0)))
    thread.start()
    thread.join()
    return done[0]


@attack
def connects_in_thread(facts):
    done = []

    def tried():
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", facts["port"]), 1)
            done.append(True)

    thread = threading.Thread(target=tried)
    thread.start()
    thread.join()
    return bool(done)


@attack
def finds_expected_output_in_frames(facts):
    """Walk every frame and object for what the supervisor knows and has not sent."""
    import gc

    frame, texts = sys._getframe(), []
    while frame is not None:
        texts += [repr(value)[:10_000] for value in frame.f_locals.values()]
        texts += [repr(value)[:10_000] for value in frame.f_globals.values()]
        frame = frame.f_back
    texts += [repr(one)[:10_000] for one in gc.get_objects() if isinstance(one, dict)]
    return any("HOSTILE" + "_EXPECTED" in text for text in texts)


def main():
    facts = json.load(sys.stdin)
    succeeded = []
    for name in facts.get("run") or ATTACKS:
        try:
            if ATTACKS[name](facts):
                succeeded.append(name)
        except (OSError, RuntimeError, MemoryError, ValueError, AttributeError, ImportError):
            continue
    print(json.dumps(succeeded))


if __name__ == "__main__":
    main()
