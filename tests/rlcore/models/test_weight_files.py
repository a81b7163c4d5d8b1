"""The transfer file is whole or absent, and a checkpoint is read as the learner holds it."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlcore.models.weight_digest import canonical_names, state_digest
from rlcore.models.weight_files import (
    checkpoint_shapes,
    exchange_file,
    read_checkpoint,
    read_state,
    write_state,
)
from schemas.errors import UserError


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "b.weight": torch.randn(5, 7, generator=generator),
        "a.weight": torch.randn(3, generator=generator).bfloat16(),
        "scalar": torch.tensor(2),
        "empty": torch.zeros(0, 4),
    }


def model(*, tied: bool) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    return Qwen2ForCausalLM(config)


@pytest.mark.parametrize("tied", [True, False])
def test_learner_and_checkpoint_agree_on_the_canonical_state(tmp_path: Path, tied: bool) -> None:
    """A tied head counted on one side only would make every sync a mismatch."""
    learner = model(tied=tied)
    learner.save_pretrained(tmp_path)
    names = canonical_names(learner)
    assert ("lm_head.weight" in names) is not tied
    held = state_digest((name, learner.state_dict()[name]) for name in names)
    assert held == state_digest(read_checkpoint(tmp_path).items())
    assert checkpoint_shapes(tmp_path) == {
        name: tuple(learner.state_dict()[name].shape) for name in names
    }


def test_a_repeated_tied_head_in_a_checkpoint_is_dropped(tmp_path: Path) -> None:
    learner = model(tied=True)
    learner.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    repeated = load_file(file)
    repeated["lm_head.weight"] = repeated["model.embed_tokens.weight"].clone()
    save_file(repeated, file)
    assert "lm_head.weight" not in read_checkpoint(tmp_path)
    assert "lm_head.weight" not in checkpoint_shapes(tmp_path)


def test_transfer_file_round_trip_leaves_nothing_else(tmp_path: Path) -> None:
    write_state(tmp_path / "weights.safetensors", state())
    write_state(tmp_path / "weights.safetensors", state())
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]
    read = read_state(tmp_path / "weights.safetensors")
    assert state_digest(read.items()) == state_digest(state().items())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_state(path, state())
    shared = torch.ones(3)
    with pytest.raises(RuntimeError, match="share memory"):
        write_state(path, {"a": shared, "b": shared})
    assert [entry.name for entry in tmp_path.iterdir()] == ["weights.safetensors"]
    assert state_digest(read_state(path).items()) == state_digest(state().items())


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_state(path, state())
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match=r"weights\.safetensors is not a readable safetensors"):
        read_state(path)


SHARED_MEMORY = Path("/dev/shm")


NO_PID = 4194305  # above the kernel's largest


def test_what_a_kill_left_is_swept_and_what_others_use_is_kept() -> None:
    """28 GB for each kill of a 7B run, until the machine has none left."""
    dead = SHARED_MEMORY / f"rl-weights-{NO_PID}-0123abcd.safetensors"
    live = SHARED_MEMORY / f"rl-weights-{os.getpid()}-0123abcd.safetensors"
    foreign = SHARED_MEMORY / f"rl-weights-{NO_PID}-notes.txt"
    files = (dead, live, foreign)
    try:
        for file in files:
            file.write_bytes(b"weights")
        with exchange_file() as path:
            path.write_bytes(b"new weights")
            assert [file.exists() for file in files] == [False, True, True]
        assert not path.exists()
    finally:
        for file in files:
            file.unlink(missing_ok=True)
