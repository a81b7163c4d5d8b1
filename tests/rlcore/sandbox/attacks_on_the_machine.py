"""Attacks on the network, on other processes and on the kernel."""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading

from tests.rlcore.sandbox.attack_table import ATTACKS, X86, C, attack

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


def system_call(name, *arguments):
    """Whether the kernel did more than to refuse: any other error means that it looked."""
    ctypes.set_errno(0)
    result = C.syscall(NUMBERS[name][0 if X86 else 1], *arguments)
    return result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)


for _name in NUMBERS:
    ATTACKS[f"call_{_name}"] = lambda _, name=_name: system_call(name, 0, 0, 0, 0, 0, 0)


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
