"""Turns are shared by processes, and end with the process that has one."""

import asyncio
import subprocess
import sys
from pathlib import Path

from rlcore.rewards.judges.client import Locks

HOLDING = """
import asyncio, sys
from pathlib import Path
from rlcore.rewards.judges.client import Locks
async def hold():
    locks = Locks(Path(sys.argv[1]))
    async with locks.slot(2), locks.question("ab" * 32):
        print("held", flush=True)
        await asyncio.sleep(3600)
asyncio.run(hold())
"""


def test_a_killed_process_gives_its_turns_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    locks, events = Locks(path), []

    async def second_of_two() -> None:
        async with locks.slot(2):
            events.append("slot")
            async with locks.slot(2):
                events.append("other's slot")

    async def question(digest: str) -> None:
        async with locks.question(digest):
            events.append(digest[:2])

    async def both() -> None:
        waiting = [second_of_two(), question("ab" * 32), question("cd" * 32)]
        tasks = [asyncio.create_task(each) for each in waiting]
        await asyncio.sleep(0.2)
        assert sorted(events) == ["cd", "slot"]
        other.kill()
        other.wait()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)

    asyncio.run(both())
    locks.close()
    assert sorted(events) == ["ab", "cd", "other's slot", "slot"]


def test_one_process_has_as_many_slots_as_there_are(tmp_path: Path) -> None:
    locks, now, most = Locks(tmp_path / "lock"), 0, 0

    async def hold() -> None:
        nonlocal now, most
        async with locks.slot(3):
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1

    async def all_of_them() -> None:
        await asyncio.gather(*(hold() for _ in range(12)))

    asyncio.run(all_of_them())
    locks.close()
    assert most == 3
