"""What others wrote ends in a sentence, whatever it is."""

import os
import time
from pathlib import Path

import pytest

from rlcore.store.limits import read_bytes, read_json, read_text, within, within_memory
from schemas.errors import UserError

pytestmark = pytest.mark.timeout(60)


def test_a_pipe_a_folder_and_a_large_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(11))
    with pytest.raises(UserError, match="pipe is no regular file"):
        read_bytes(tmp_path / "pipe", at_most=10)
    with pytest.raises(UserError, match="large has 0 MiB, and such a file at most"):
        read_bytes(tmp_path / "large", at_most=10)
    assert read_bytes(tmp_path / "large", at_most=11) == bytes(11)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none", at_most=1)


def test_text_that_is_not_utf_8_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(UserError, match="text is not UTF-8 on line 2"):
        read_text(tmp_path / "text", at_most=100)


def test_deep_json_is_no_json() -> None:
    assert read_json("[[1]]") == [[1]]
    for text in ("[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            read_json(text)


def test_a_body_without_end_is_ended_and_others_are_not() -> None:
    def forever() -> None:
        while True:
            try:
                sum(range(10))
            except Exception:  # noqa: BLE001 - as a template's sandbox does
                continue

    began = time.monotonic()
    with pytest.raises(UserError, match="it has no end"), within(0.5, "it has no end"):
        forever()
    assert time.monotonic() - began < 30
    with within(0.2, "it has no end"):
        done = sum(range(10))
    time.sleep(0.4)  # nothing is interrupted afterwards
    assert done == 45
    with pytest.raises(KeyError), within(10, "it has no end"):
        raise KeyError


def test_a_body_that_takes_too_much_memory_is_ended_and_the_next_is_not() -> None:
    with pytest.raises(UserError, match="too much"), within_memory(1 << 28, "too much"):
        bytearray(1 << 30)
    with within_memory(1 << 30, "too much"):
        bytearray(1 << 20)
    bytearray(1 << 30)
