"""The places of programs: one program each, nobody else's, empty again."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlcore.sandbox import slots
from rlcore.sandbox.slots import SLOTS, checked, first_uid, slot, state_directory, sweep, used
from rlcore.sandbox.types import SandboxError

ROOT = Path(__file__).parents[3]
AS_ROOT = os.geteuid() == 0


@pytest.fixture
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="rl-pipeline-slots-"))
    yield checked(made)
    shutil.rmtree(made)


def test_two_at_once_share_nothing(directory: Path) -> None:
    with slot(directory) as one, slot(directory) as two:
        assert one.scratch != two.scratch
        if AS_ROOT:
            assert one.uid != two.uid
            assert {one.scratch.stat().st_uid, two.scratch.stat().st_uid} == {one.uid, two.uid}
        assert one.scratch.stat().st_mode & 0o077 == 0
    assert not list((directory / "slots").iterdir())


def test_two_processes_do_not_collide(directory: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom rlcore.sandbox.slots import slot\n"
        f"with slot(Path({str(directory)!r})) as one:\n"
        "  print(one.scratch.name, flush=True); input()"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    names = [one.stdout.readline() for one in started if one.stdout]
    for one in started:
        one.communicate("\n")
    assert sorted(names) == ["0\n", "1\n", "2\n"]


def test_what_a_killed_supervisor_left_is_removed(directory: Path) -> None:
    left = directory / "slots" / "0"
    left.mkdir()
    (left / "x").write_text("x")
    with slot(directory) as one:
        assert one.scratch == left
        assert not list(left.iterdir())
    for name in ("0", "5"):
        (directory / "slots" / name).mkdir()
    with slot(directory) as used_one:
        (used_one.scratch / "mine").write_text("x")
        sweep(directory)
        assert (used_one.scratch / "mine").exists(), "in use"
        assert not (directory / "slots" / "5").exists()


def test_more_than_there_are_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SLOTS", 1)
    with (
        slot(directory),
        pytest.raises(SandboxError, match=r"all 1 sandboxes .* in use"),
        slot(directory),
    ):
        pass


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Anyone may make a folder of that name in /var/tmp first."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(mode)
    with pytest.raises(SandboxError, match="only this user can write; remove it"):
        checked(tmp_path / "d")


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SandboxError, match="is not a directory"):
        checked(tmp_path / "link")


def test_locks_are_closed_to_other_users() -> None:
    directory = state_directory()
    assert directory.stat().st_mode & 0o777 == 0o711
    assert (directory / "locks").stat().st_mode & 0o777 == 0o700


def test_ids_exist_and_are_those_of_no_account(directory: Path) -> None:
    import pwd

    first = first_uid(directory)
    assert first == first_uid(directory)
    assert not {one.pw_uid for one in pwd.getpwall()} & set(range(first, first + SLOTS))


def test_use_is_counted_and_every_folder_can_be_removed(directory: Path) -> None:
    with slot(directory) as one:
        (one.scratch / "a").mkdir()
        (one.scratch / "a" / "x").write_bytes(b"x" * 100_000)
        size, entries = used(one.scratch, 2000)
        assert 100_000 <= size < 200_000
        assert entries == 2
        (one.scratch / "closed" / "inner").mkdir(parents=True)
        (one.scratch / "closed").chmod(0)
        assert used(one.scratch, 2000)[1] >= 3
        back = os.open(".", os.O_RDONLY)
        try:
            os.chdir(one.scratch)
            for _ in range(1200):  # deeper than a path may be long, and than Python recurses
                os.mkdir("d" * 50)
                os.chdir("d" * 50)
        finally:
            os.fchdir(back)
            os.close(back)
        assert used(one.scratch, 2000)[0] == float("inf")
        assert used(one.scratch, 10)[1] == 11
    assert not list((directory / "slots").iterdir())


def test_many_threads_get_a_slot_each(directory: Path) -> None:
    def take(_: int) -> None:
        with slot(directory) as one:
            (one.scratch / "x").touch(exist_ok=False)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(100)))
