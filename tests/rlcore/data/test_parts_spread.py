"""Rows are prepared alike by one process and by several, none of which outlives its parent."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlcore.data.parts import prepare_parts
from rlcore.data.prepare import prepare
from rlcore.data.prepare_part import Part, Work
from rlcore.data.rows import RawTable
from rlcore.models.tokenizer import train_tokenizer
from schemas.data import DataSection, FileSource
from schemas.errors import UserError


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the number of processes; parts are small and few of them are many."""
    monkeypatch.setattr("rlcore.data.parts.MANY", 2)
    monkeypatch.setattr("rlcore.data.parts.PART_ROWS", 16)
    return lambda count: monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))


def parts(count: int) -> Iterator[Part]:
    for number in range(count):
        rows = [{"prompt": f"{n} plus one?", "completion": "x"} for n in range(20)]
        yield Part(number, 0, "x", RawTable("x", "train", rows), "trl", 20 * number)


def work() -> Work:
    return Work(DataSection(sources=(FileSource(path="x.jsonl"),)), (), None)


def tokenizer() -> Any:
    return train_tokenizer(["0 1 2 plus one?"] * 10, 300)


def children() -> list[psutil.Process]:
    """The processes that prepare data; a server of other tests may run beside them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if "rlcore.data.child" in process.cmdline():
                found.append(process)
    return found


@pytest.mark.slow
def test_the_tables_are_the_same_whatever_makes_them(tmp_path: Path, cores: Any) -> None:
    """Digests, uids and cached stages must not hang on the machine."""
    rows = [
        {"prompt": f"{n % 90} plus {'one ' * (n % 7)}?", "completion": f"{n}", "ground_truth": "1"}
        for n in range(100)
    ]
    for name, some in (("train", rows), ("test", rows[:3])):
        lines = [json.dumps(row) if n != 50 else '{"prompt": 7}' for n, row in enumerate(some)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    sources = [
        {"kind": "file", "path": str(tmp_path / f"{split}.jsonl"), "split": split}
        for split in ("train", "test")
    ]
    data = DataSection.model_validate(
        {"sources": sources, "max_reject_fraction": 1.0, "validation_fraction": 0.2}
    )
    found = []
    for count in (1, 2):
        cores(count)
        found.append(prepare(data, tokenizer=tokenizer(), seed=0, sft_max_tokens=64))
    one, two = found
    assert one.summary == two.summary
    assert one.tables["rejects"].height > 3
    for name, table in one.tables.items():
        assert table.equals(two.tables[name]), name
    assert not children()


@pytest.mark.slow
def test_answers_come_in_order_until_a_process_dies(cores: Any) -> None:
    """Reading far ahead would hold the file in memory; a dead process is one sentence."""
    cores(2)
    ahead = 0

    def counted() -> Iterator[Part]:
        nonlocal ahead
        for part in parts(1000):
            ahead += 1
            yield part

    numbers, most = [], 0
    prepared = prepare_parts(tokenizer(), work(), counted())
    for done in islice(prepared, 30):
        numbers.append(done.number)
        most, ahead = max(most, ahead), ahead - 1
    assert numbers == list(range(30))
    assert most <= 12
    for process in children():
        process.send_signal(signal.SIGKILL)
    with pytest.raises(UserError, match=r"^data: a process that prepares rows ended \(.*SIGKILL"):
        deque(prepared, maxlen=0)
    assert not children()


def test_few_parts_stay_in_the_process(cores: Any) -> None:
    cores(2)
    for _ in prepare_parts(tokenizer(), work(), parts(1)):
        assert not children()


_ENDLESS = """
import itertools, os
import rlcore.data.parts as spread
from tests.rlcore.data.test_parts_spread import parts, tokenizer, work
spread.MANY = 2
os.sched_getaffinity = lambda _: {0, 1}
endless = itertools.chain.from_iterable(map(parts, itertools.repeat(9)))
for done in spread.prepare_parts(tokenizer(), work(), endless):
    print("prepared", flush=True)
"""


@pytest.mark.slow
def test_no_process_outlives_a_killed_parent() -> None:
    """Orphans would hold memory and cores until the machine is restarted."""
    command = [sys.executable, "-c", _ENDLESS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "prepared\n"
        started = psutil.Process(parent.pid).children(recursive=True)
        assert len(started) == 4, "two that work, each with one that watches it"
        parent.kill()
    deadline = time.monotonic() + 300
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_prepares_rows_does_not_load_the_contracts_of_tables() -> None:
    """They are nearly half of what it would import, in every process, before its first row."""
    lines = "import sys, rlcore.data.prepare_part; print('pandera' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, check=True
    )
    assert found.stdout == "False\n"
