"""SQL over a million trajectories, each figure from a fresh process of ``rl-pipeline sql``.

The store is made in the folder of temporary files (``TMPDIR``): about 400 MB. Wall clocks are the
best of ``TRIES``; an idle machine of two cores is assumed.
"""

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rlcore.store.file_stamps import SETTLED_S
from tests.bench.measures import Measure
from tests.bench.million import ARTIFACTS, TRAJECTORIES, build

TRIES = 3
WARM_S, COLD_S, MEMORY_MIB = 4.0, 8.0, 1024.0
REWARDS = "select records_key, avg(score) from rewards group by all"
TRAJECTORY = "select iteration, avg(score) from trajectories group by all"
COUNT = "select count(*), (select count(*) from artifacts) from trajectories"


@dataclass(frozen=True, slots=True)
class _Run:
    """What one process came to. ``memory``: its largest resident set, MiB."""

    code: int
    seconds: float
    memory: float
    said: str


def measures() -> list[Measure]:
    """Return the figures of this benchmark; about two minutes."""
    with tempfile.TemporaryDirectory(prefix="rl-pipeline-bench-") as folder:
        began = time.perf_counter()
        root = Path(folder) / "store"
        build(root)
        time.sleep(SETTLED_S)  # what has only just changed is not remembered
        made = Measure("making the store, s", time.perf_counter() - began)
        return [made, *_speed(root), *_damage(root)]


def _speed(root: Path) -> list[Measure]:
    held = _sql(root, COUNT).said.splitlines()[1]
    right = float(held == f"{TRAJECTORIES},{ARTIFACTS}")
    found = [Measure("all trajectories and artifacts are seen", right, least=1, note=held)]
    for name, statement in (("rewards", REWARDS), ("trajectories", TRAJECTORY)):
        cold = []
        for _ in range(TRIES):
            shutil.rmtree(root / ".index", ignore_errors=True)
            cold.append(_sql(root, statement))
        warm = [_sql(root, statement) for _ in range(TRIES)]
        same = {run.said for run in (*cold, *warm)}
        found += [
            Measure(f"{name}, no index, s", min(run.seconds for run in cold), most=COLD_S),
            Measure(f"{name}, index, s", min(run.seconds for run in warm), most=WARM_S),
            Measure(
                f"{name}, memory, MiB",
                max(run.memory for run in (*cold, *warm)),
                most=MEMORY_MIB,
            ),
            Measure(f"{name}, different answers", len(same), most=1),
        ]
    return found


def _damage(root: Path) -> list[Measure]:
    """Flip a byte, keep size and mtime: the file is named, and only where it is read."""
    path = sorted((root / "rewards").rglob("*.parquet"))[ARTIFACTS // 7]
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    named, unread = _sql(root, REWARDS), _sql(root, "select count(*) from rollouts")
    return [
        Measure("a damaged file is named", float(named.code == 1 and str(path) in named.said), 1),
        Measure("exit code where it is not read", unread.code, most=0),
    ]


def _sql(root: Path, statement: str) -> _Run:
    command = [sys.executable, "-m", "flows.cli", "sql", statement, "--store", str(root)]
    with tempfile.TemporaryFile("w+") as output:
        began = time.perf_counter()
        pid = os.posix_spawn(
            sys.executable,
            [*command, "--format", "csv"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, output.fileno(), 2),
            ],
        )
        _, status, usage = os.wait4(pid, 0)
        seconds = time.perf_counter() - began
        output.seek(0)
        said = output.read()
    lines = said.splitlines()
    return _Run(
        os.waitstatus_to_exitcode(status),
        seconds,
        usage.ru_maxrss / 1024,
        "\n".join([*lines[:1], *sorted(lines[1:])]),
    )
