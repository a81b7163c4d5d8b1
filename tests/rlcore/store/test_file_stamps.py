"""A stamp differs once a file may have other content."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlcore.store import file_stamps
from rlcore.store.file_stamps import stamp


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def edited_and_set_back(path: Path) -> None:
    before = path.stat()
    with open(path, "r+") as file:
        file.write("x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    before = path.stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)


@pytest.mark.parametrize("change", [touched, edited_and_set_back, replaced, Path.unlink])
def test_a_change_shows(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stamps, "SETTLED_S", 0.0)
    path = tmp_path / "file"
    path.write_text("content")
    before = stamp(path)
    assert before
    assert stamp(path) == before
    change(path)
    assert stamp(path) != before


def test_no_stamp_of_what_has_only_just_changed_or_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    assert stamp(path) == ""
    assert stamp(tmp_path / "none") == ""
    assert stamp(path / "below a file") == ""
