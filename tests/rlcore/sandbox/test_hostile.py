"""Hostile programs: at every level, as root and as an ordinary user, each ends, nothing stays."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlcore.sandbox.types import MIB, Level, Limits, Ran, Status
from tests.rlcore.sandbox.attacks import ATTACKS, PROGRAM
from tests.rlcore.sandbox.endings import ENDINGS, LIMITS
from tests.rlcore.sandbox.places import (
    AS_ROOT,
    NAMED,
    NAMES,
    ORDINARY_UID,
    PLACES,
    ROOT,
    Place,
    control_groups,
    leave_orphans_to_us,
    mounts,
    ordinary_user,
    private_directory,
    programs,
)

# The attacks, importable inside by the names that they have here.
FILES = {
    f"tests/rlcore/sandbox/{path.name}": path.read_text()
    for path in Path(__file__).parent.glob("attack*.py")
}
# The program writes the modules that it imports.
WITH_FILES = f"""import os
for name, text in {FILES!r}.items():
    os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
"""
ATTACK_LIMITS = Limits(seconds=20, memory_bytes=256 * MIB, files_bytes=8 * MIB)
QUICK = ("ignores_signals", "fork_bomb", "daemon", "memory_bomb", "gigabyte_of_output")
SLOW_MACHINE_S = 3.0  # to end a program, with the limit a second on an idle machine


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Place]]:
    leave_orphans_to_us(True)
    with ExitStack() as stack:
        own = private_directory()
        stack.callback(shutil.rmtree, own)
        helper, others = stack.enter_context(ordinary_user()) if AS_ROOT else (None, own)
        yield {
            "own": Place(PLACES[-1][1], own),
            **{
                name: Place(
                    level, others if who == "user" else own, helper if who == "user" else None
                )
                for name, (who, level) in zip(NAMES, PLACES, strict=True)
            },
        }
    leave_orphans_to_us(False)


@pytest.fixture(scope="module")
def facts() -> Iterator[dict[str, Any]]:
    """Things out here that an attack may reach for, and that everybody may use."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        folder.chmod(0o777)
        for name, mode in (("everybodys", 0o644), ("own", 0o600), ("writable", 0o666)):
            (folder / name).write_text("HOSTILE_EXPECTED")
            (folder / name).chmod(mode)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        name = f"hostile-{os.urandom(8).hex()}"
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind("\0" + name)
        datagram = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagram.bind(f"\0{name}-datagram")
        for listening in (unix, abstract):
            listening.listen()
        yield {
            "pid": os.getpid(),
            "repository": str(ROOT),
            "folder": str(folder),
            **{name: str(folder / name) for name in ("everybodys", "own", "writable")},
            "unix": str(folder / "socket"),
            "port": server.getsockname()[1],
            "abstract": name,
            "abstract_datagram": f"{name}-datagram",
            "memory_bytes": ATTACK_LIMITS.memory_bytes,
            "files_bytes": ATTACK_LIMITS.files_bytes,
        }


def attacked(place: Place, facts: dict[str, Any], *names: str) -> Ran:
    slots = str(place.directory / "slots")
    stdin = json.dumps({**facts, "slots": slots, "run": names})
    return place.run(WITH_FILES + PROGRAM, stdin, ATTACK_LIMITS)


def check_ending(place: Place, name: str) -> None:
    before = mounts()
    # What another limit ends must reach it, which takes longer on a busy machine.
    timed = Status.TIMEOUT in ENDINGS[name].statuses
    limits = LIMITS if timed else replace(LIMITS, seconds=20)
    start = time.monotonic()
    ran = place.run(ENDINGS[name].program, limits=limits)
    took = time.monotonic() - start
    assert ENDINGS[name].allows(ran), f"{name}: {ran.status} {ran.exit_code} {ran.stderr[-300:]}"
    assert took < limits.seconds + SLOW_MACHINE_S, f"{name} took {took:.1f} s"
    assert len(ran.stdout) <= LIMITS.output_bytes
    assert len(ran.stderr) <= LIMITS.output_bytes
    check_nothing_left(place, before)


def check_nothing_left(place: Place, before: list[str]) -> None:
    assert not programs()
    assert not list((place.directory / "slots").iterdir())
    assert mounts() == before
    assert not control_groups()


def test_there_are_enough_cases() -> None:
    assert len(ATTACKS) + len(ENDINGS) >= 150


@pytest.mark.parametrize("name", NAMED)
def test_every_level_withstands_the_attack_at_start_up(places: dict[str, Place], name: str) -> None:
    assert places[name].weakness() == ""


@pytest.mark.parametrize("name", NAMED)
def test_no_attack_succeeds(places: dict[str, Place], facts: dict[str, Any], name: str) -> None:
    """All in one program: files, environment, processes, network, namespaces, kernel."""
    before = mounts()
    ran = attacked(places[name], facts)
    assert ran.succeeded, f"{ran.status} {ran.exit_code} {ran.stderr[-1000:]}"
    assert json.loads(ran.stdout) == []
    assert sorted(os.listdir(facts["folder"])) == ["everybodys", "own", "socket", "writable"]
    assert Path(facts["writable"]).read_text() == "HOSTILE_EXPECTED"
    check_nothing_left(places[name], before)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_no_attack_succeeds_alone(
    places: dict[str, Place], facts: dict[str, Any], name: str
) -> None:
    """One by one, so that none is refused only because of what another did before."""
    for attack in ATTACKS:
        ran = attacked(places[name], facts, attack)
        assert ran.succeeded, f"{attack}: {ran.status} {ran.exit_code} {ran.stderr[-1000:]}"
        assert json.loads(ran.stdout) == []


def test_the_attacks_work_where_nothing_confines_them(facts: dict[str, Any]) -> None:
    """An attack that cannot succeed anywhere would prove nothing."""
    harmless = [
        *("reads_a_file_of_everybody", "reads_a_file_of_the_user", "reads_environment_of_parent"),
        *("reads_the_repository", "lists_processes", "follows_symlink", "network_tcp"),
        *("network_unix", "network_abstract", "network_listens", "signals_supervisor"),
        *("network_datagram_pair_to_an_address", "forks", "clones_with_shared_memory"),
        *("runs_a_shell", "finds_variables", "follows_hardlink", "call_pidfd_open"),
        *("call_memfd_create", "signals_by_file_owner", "changes_times_outside"),
    ]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps({**facts, "slots": "", "run": harmless}),
        capture_output=True,
        text=True,
        check=True,
        cwd=facts["folder"],
        env={"USER": "somebody", "PYTHONPATH": str(ROOT)},
    )
    for made in ("link", "hard"):
        Path(facts["folder"], made).unlink()
    assert json.loads(ran.stdout) == harmless


@pytest.mark.parametrize("ending", QUICK)
@pytest.mark.parametrize("name", NAMED[-1:])
def test_a_program_is_ended(places: dict[str, Place], name: str, ending: str) -> None:
    check_ending(places[name], ending)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_program_is_ended(places: dict[str, Place], name: str, ending: str) -> None:
    check_ending(places[name], ending)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_a_slot_is_not_seen_from_another(places: dict[str, Place], name: str) -> None:
    """Two programs at once: neither reads, writes or signals what is the other's."""
    # As this process's user: the helper of another runs one program at a time.
    place = Place(places[name].level, places["own"].directory)
    snoop = (
        "import os, time\nfor _ in range(20):\n  time.sleep(0.05)\n"
        f"  for n in range(4):\n    for f in ('secret', 'x'):\n"
        f"      try: print(open(f'{place.directory}/slots/{{n}}/' + f).read())\n"
        "      except OSError: pass\n"
    )
    with ThreadPoolExecutor(2) as pool:
        hiding = pool.submit(
            place.run, "open('secret', 'w').write('HOSTILE'); import time; time.sleep(1)"
        )
        ran = place.run(snoop)
        assert hiding.result().succeeded
    assert ran.status is Status.EXITED
    assert ran.stdout == b""


STAT = "import os, sys; print(os.stat(sys.stdin.read()).st_size)"


@pytest.mark.parametrize("name", NAMED)
def test_landlock_does_not_hide_that_a_file_exists(
    places: dict[str, Place], facts: dict[str, Any], name: str
) -> None:
    """A limit of Landlock, which docs/do/secure.md states; namespaces have no such file."""
    ran = places[name].run(STAT, facts["everybodys"])
    assert ran.succeeded is (places[name].level is not Level.NAMESPACES)


def test_a_shared_uid_is_that_of_the_supervisor(places: dict[str, Place]) -> None:
    program = "import os; print(os.getuid())"
    uids = {
        name: int(places[name].run(program).stdout)
        for name, (_, level) in zip(NAMES, PLACES, strict=True)
        if level is not Level.NAMESPACES
    }
    user = ORDINARY_UID if AS_ROOT else os.getuid()
    assert uids["user-landlock-shared-uid"] == user
    assert uids.get("root-landlock") not in (0, user)


@pytest.mark.parametrize("name", NAMED)
def test_the_kernel_is_that_of_this_machine(places: dict[str, Place], name: str) -> None:
    ran = places[name].run("import os; print(os.uname().release)")
    assert ran.stdout.decode().strip() == os.uname().release
