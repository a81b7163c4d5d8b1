"""Memory that runs out in a pass of a learner is told apart from any other."""

import resource
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest

from rlcore.learner.memory import LearnerOutOfMemory, told_apart

SAID = "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"


@pytest.mark.parametrize("method", ["logprobs", "values", "step", "update"])
def test_in_a_pass_it_names_the_call_and_what_was_said(method: str) -> None:
    with pytest.raises(LearnerOutOfMemory) as raised, told_apart(method):
        raise RuntimeError(f"the worker says\n  {SAID}\nand more")
    assert str(raised.value) == f"memory ran out in the learner's {method}: {SAID}"


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("save", MemoryError("cannot allocate memory")),  # smaller passes need as much
        ("publish", RuntimeError(SAID)),
        ("update", RuntimeError("a bug")),
        ("update", ValueError("out of range")),
    ],
)
def test_any_other_error_passes(method: str, error: Exception) -> None:
    with pytest.raises(type(error)) as raised, told_apart(method):
        raise error
    assert raised.value is error


def _allocate(answer: Connection) -> None:
    import torch

    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
    try:
        with told_apart("update"):
            torch.ones(1 << 32)
    except LearnerOutOfMemory as error:
        answer.send(str(error))
    else:
        answer.send("")


def test_what_torch_really_says_is_recognised() -> None:
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_allocate, args=(theirs,))
    process.start()
    assert ours.poll(60)
    assert ours.recv().startswith("memory ran out in the learner's update: ")
    process.join(300)
