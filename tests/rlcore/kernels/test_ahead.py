"""A worker compiles the loops while it waits, where it will compute them."""

import importlib
import sys

import pytest
import torch

from rlcore.kernels import ahead

LOOPS = ("rlcore.kernels.documents", "rlcore.kernels.loops")


@pytest.mark.parametrize("gpu", [False, True])
def test_loops_are_compiled_ahead_on_a_cpu_only(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LOOPS:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(f"rlcore.kernels.{name.rpartition('.')[2]}", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    importlib.reload(ahead)
    assert [name in sys.modules for name in LOOPS] == [not gpu] * 2
