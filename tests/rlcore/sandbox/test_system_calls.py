"""The filter of system calls: small, the same each time, and an error where it cannot be made."""

import sys

import pytest

from rlcore.sandbox.system_calls import filter_code
from rlcore.sandbox.types import SandboxError


def test_it_is_a_program_for_the_kernel() -> None:
    for may_exec in (False, True):
        code = filter_code(may_exec)
        assert len(code) % 8 == 0
        assert 100 < len(code) // 8 < 4096  # BPF_MAXINSNS
        assert len(code) <= 4096, "it must fit a pipe"
    assert filter_code(True) != filter_code(False)


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyseccomp", raising=False)
    monkeypatch.setattr(
        "ctypes.util.find_library", lambda name: None if name != "c" else "libc.so.6"
    )
    filter_code.cache_clear()
    with pytest.raises(SandboxError, match="install libseccomp2"):
        filter_code(True)
