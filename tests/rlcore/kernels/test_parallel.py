"""Loops run on torch's own threads, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlcore.kernels import parallel
from rlcore.store.fingerprint import code_of

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


FEWER = """
import torch
from rlcore.kernels.parallel import run
from rlcore.models.blocks import Shape
from rlcore.models.document_attention import DocumentAttention, documents_of_pass
torch.set_num_threads(2)
gates, y = torch.randn(3000, 128), torch.full((3000, 64), torch.nan)
run("swiglu", 3000, 64, gates, y)
gate, up = gates.chunk(2, 1)
torch.testing.assert_close(y, torch.nn.functional.silu(gate) * up)
positions = torch.arange(256) % 16
query, key, value = torch.randn(3, 1, 4, 256, 32)
documents = documents_of_pass((Shape(16, 16, False),), positions.numpy())
ours = DocumentAttention.apply(query, key, value, 0.2, documents)
rows = [each.view(4, 16, 16, 32).transpose(0, 1) for each in (query, key, value)]
theirs = torch.nn.functional.scaled_dot_product_attention(*rows, is_causal=True, scale=0.2)
torch.testing.assert_close(ours.view(16, 16, 4, 32).transpose(1, 2), theirs)
"""


@pytest.mark.parametrize("limit", [{"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true"}])
def test_a_team_that_is_smaller_than_asked_computes_all_rows(limit: dict[str, str]) -> None:
    """OpenMP may grant fewer threads than torch says it has."""
    found = subprocess.run(
        [sys.executable, "-c", FEWER], capture_output=True, text=True, env=os.environ | limit
    )
    assert found.returncode == 0, found.stderr


def test_loops_serve_float32_on_a_cpu_where_numba_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallel.serves(torch.zeros(2))
    assert not parallel.serves(torch.zeros(2).bfloat16())
    assert not parallel.serves(torch.zeros(2, device="meta"))
    monkeypatch.setattr(parallel, "_compiled", lambda: False)
    assert not parallel.serves(torch.zeros(2))


def test_no_loops_where_torch_is_linked_with_no_openmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one thread they would be slower than torch's operations on many."""
    find_team = parallel._team.__wrapped__
    assert find_team() is not None
    folder = Path(torch.__file__).parent / "lib"
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    assert find_team() is None  # a torch of another layout
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cpu.so").symlink_to(folder / "libc10.so")
    assert find_team() is None
    monkeypatch.setattr(parallel, "_team", find_team)
    assert not parallel.serves(torch.zeros(2))


def test_no_rows_are_no_work() -> None:
    parallel.run("swiglu", 0, 64, torch.empty(0, 128), torch.empty(0, 64))


def test_a_changed_loop_is_other_code() -> None:
    """A result that older loops made would else be served."""
    code = code_of("rlcore.learner.model")
    assert {"rlcore.kernels.loops", "rlcore.kernels.intrinsics"} <= set(code.modules)
    assert "numba" in code.libraries
