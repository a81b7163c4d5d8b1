"""Loops run on torch's own threads, and nowhere else."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlcore.kernels import parallel
from rlcore.store.fingerprint import code_modules, code_parts

OWN_POOL = """
import psutil, torch
from rlcore.kernels.parallel import run
torch.set_num_threads(3)
x = torch.ones(3000, 64)
x @ x.t()
before = psutil.Process().num_threads()
gates, y = torch.ones(3000, 128), torch.empty(3000, 64)
run("swiglu", 3000, 64, gates, y)
assert psutil.Process().num_threads() == before, "a second pool of threads"
libraries = {row.split()[-1] for row in open("/proc/self/maps") if "gomp" in row}
print(sorted(libraries))
"""


def test_no_second_pool_of_threads() -> None:
    """Two pools would spin against each other."""
    found = subprocess.run(
        [sys.executable, "-c", OWN_POOL], check=True, capture_output=True, text=True
    )
    assert found.stdout.count("gomp") == 1


def test_loops_serve_float32_on_a_cpu_where_numba_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallel.serves(torch.zeros(2))
    assert not parallel.serves(torch.zeros(2).bfloat16())
    assert not parallel.serves(torch.zeros(2, device="meta"))
    monkeypatch.setattr(parallel, "_compiled", lambda: False)
    assert not parallel.serves(torch.zeros(2))


@pytest.mark.parametrize("loaded", [[], ["one/libgomp.so.1", "other/libgomp-1.so.1"]])
def test_no_loops_where_torchs_threads_are_not_found(
    loaded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch that runs on another OpenMP library, or on one that cannot be told."""
    assert parallel._loaded_library() is not None
    monkeypatch.setattr(parallel, "Path", _files_of_process(loaded, tmp_path))
    assert parallel._loaded_library() is None


@pytest.mark.parametrize("folder", ["torch/lib", "torch.libs", "/usr/lib/x86_64-linux-gnu"])
def test_torchs_own_threads_are_taken(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel's beside another package's, or the system's of a build of one's own."""
    ours = str(Path(torch.__file__).resolve().parents[1] / folder / "libgomp.so.1")
    others = [] if folder.startswith("/") else ["/packages/scikit_learn.libs/libgomp-1.so.1"]
    monkeypatch.setattr(parallel, "Path", _files_of_process([ours, *others], tmp_path))
    assert str(parallel._loaded_library()) == ours


def _files_of_process(loaded: list[str], folder: Path) -> Callable[[str], Path]:
    rows = [f"7f00-7f01 r-xp 00000000 fe:00 {at} {path}" for at, path in enumerate(loaded)]
    maps = folder / "maps"
    maps.write_text("\n".join(["7f02-7f03 rw-p 00000000 00:00 0", *rows]) + "\n")
    return lambda path: maps if path == "/proc/self/maps" else Path(path)


def test_no_rows_are_no_work() -> None:
    parallel.run("swiglu", 0, 64, torch.empty(0, 128), torch.empty(0, 64))


def test_a_changed_loop_is_other_code() -> None:
    """A result that older loops made would else be served."""
    reached = code_modules("rlcore.learner.model")
    assert {"rlcore.kernels.loops", "rlcore.kernels.intrinsics"} <= set(reached)
    assert code_parts("rlcore.learner.model")["numba"].startswith("numba==")
