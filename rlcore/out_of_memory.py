"""How memory that ran out is recognised, whoever says so."""

# What CUDA, the CPU allocators of torch, C++ and numpy, the kernel and Ray say.
_SAID = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "unable to allocate"),
    *("bad_alloc", "low on memory"),
)


def ran_out(error: BaseException | str) -> bool:
    """Return whether ``error``, or a line of one, says that memory ran out, here or in a worker."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or any(words in said for words in _SAID)
