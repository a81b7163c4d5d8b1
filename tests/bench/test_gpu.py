"""The GPU benchmark's steps, at a shape that a CPU can take."""

import pytest

from tests.bench.gpu import Work, measured

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}


@pytest.mark.slow
def test_a_step_samples_scores_and_trains() -> None:
    """It runs where a device is lent, for minutes: what fails should fail here."""
    work = Work("cpu", "float32", steps=1, rows=6, longest=32, micro_batch_tokens=256, shape=SHAPE)
    found = {measure.name: measure.value for measure in measured(work)}
    parts = ("sync", "sampling", "log-probs", "reference", "values", "update", "critic update")
    whole = sum(found[f"gpu: {part}, s"] for part in parts)
    assert abs(found["gpu: s a step"] - whole) < 0.01
    assert found["gpu: tokens/s, prompts included"] > 0
    assert all(measure >= 0 for measure in found.values())
