"""Memory that runs out while a learner computes: told apart from any other, since fewer tokens per
pass need less."""

from collections.abc import Iterator
from contextlib import contextmanager

from rlcore.out_of_memory import ran_out

# The calls that go through micro-batches.
PASSES = ("logprobs", "values", "step", "accumulate", "update")


class LearnerOutOfMemory(MemoryError):
    """A learner ran out of memory in a pass; the message names the call and what was said."""


@contextmanager
def told_apart(method: str) -> Iterator[None]:
    """Raise LearnerOutOfMemory where the body, a call of ``method``, runs out of memory in a
    learner's pass; any other error passes."""
    try:
        yield
    except Exception as error:
        if method not in PASSES or not ran_out(error):
            raise
        said = next((line.strip() for line in str(error).splitlines() if ran_out(line)), "")
        raise LearnerOutOfMemory(f"memory ran out in the learner's {method}: {said}") from error
