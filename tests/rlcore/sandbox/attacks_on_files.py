"""Attacks on files, on what the supervisor knows, and on the limits of memory and disk."""

import contextlib
import fcntl
import gc
import mmap
import os
import sys
import tempfile
from multiprocessing import shared_memory

from tests.rlcore.sandbox.attack_table import ATTACKS, C, attack


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


@attack
def shares_memory_by_name(facts):
    block = shared_memory.SharedMemory("hostile", create=True, size=2**30)
    assert block.buf is not None
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
def finds_expected_output_in_frames(facts):
    """Walk every frame and object for what the supervisor knows and has not sent."""
    frame, texts = sys._getframe(), []
    while frame is not None:
        texts += [repr(value)[:10_000] for value in frame.f_locals.values()]
        texts += [repr(value)[:10_000] for value in frame.f_globals.values()]
        frame = frame.f_back
    texts += [repr(one)[:10_000] for one in gc.get_objects() if isinstance(one, dict)]
    return any("HOSTILE" + "_EXPECTED" in text for text in texts)
