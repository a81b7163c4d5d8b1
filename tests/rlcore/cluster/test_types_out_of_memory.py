"""Every library says in its own words that memory ran out."""

import pytest

from rlcore.cluster.types import ran_out


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), True),
        (RuntimeError("std::bad_alloc"), True),
        (OSError(12, "Cannot allocate memory"), True),
        ("worker died: killed due to the node running low on memory", True),
        (RuntimeError("the learner died"), False),
        (OSError(28, "No space left on device"), False),
        ("", False),
    ],
)
def test_it_is_recognised(error: BaseException | str, is_memory: bool) -> None:
    assert ran_out(error) == is_memory
