"""The learner's weights in shared memory: whole or unreadable, and gone with their process."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlcore.learner.weights import SharedState
from rlcore.models.weight_digest import state_digest
from rlcore.models.weight_files import read_state
from schemas.errors import UserError

ENDS_S = 30.0


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "flag": torch.tensor([True]),
        "b.weight": torch.randn(5, 7, generator=generator).T,
        "a.weight": torch.randn(3, generator=generator).bfloat16(),
        "scalar": torch.tensor(2),
        "empty": torch.zeros(0, 4),
        "c.weight": torch.randn(2, 3, generator=generator),
    }


def test_each_state_is_read_as_it_was_written() -> None:
    """Also one of another model; elements lie where their width asks for it."""
    shared = SharedState()
    for written in ({}, state(0), state(1), {"other": torch.ones(3)}, {}, state(2)):
        read = read_state(shared.write(written))
        assert state_digest(read.items()) == state_digest(written.items())
        assert all(tensor.data_ptr() % tensor.itemsize == 0 for tensor in read.values())


def test_the_memory_is_kept() -> None:
    """What was read before shows what is written after, so readers copy."""
    shared = SharedState()
    path = shared.write(state(0))
    before = read_state(path)
    assert shared.write(state(1)) == path
    assert state_digest(before.items()) == state_digest(state(1).items())


def test_what_is_half_written_is_not_readable() -> None:
    shared = SharedState()
    path = shared.write(state(0))
    torn = {**state(1), "c.weight": torch.empty(2, 3, device="meta")}
    with pytest.raises(NotImplementedError, match="meta"):
        shared.write(torn)
    with pytest.raises(UserError, match="is not a readable safetensors file"):
        read_state(path)
    assert shared.write(state(1)) == path
    assert state_digest(read_state(path).items()) == state_digest(state(1).items())


WRITER = """
import sys, torch
from rlcore.learner.weights import SharedState
shared = SharedState()
print(shared.write({"a": torch.ones(3)}), flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_of_a_process_that_is_killed() -> None:
    """28 GB for each kill of a 7B run would end the machine's memory."""
    command = [sys.executable, "-c", WRITER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        path = process.stdout.readline().decode().strip()
        assert read_state(path)["a"].tolist() == [1, 1, 1]
        process.kill()
        process.wait(ENDS_S)
    assert not Path(path).exists()
    with pytest.raises(UserError, match="the learner must publish it again"):
        read_state(path)
