"""Memory that runs out ends in a sentence that says what to lower, never what is set already."""

from typing import Any

import pytest

from rlcore.diagnostics.memory import explained, remedy
from schemas.errors import UserError
from tests.rlcore.diagnostics.streams import recipe

CHECKPOINTED: dict[str, Any] = {"hardware__learner__gradient_checkpointing": True}
SMALLEST: dict[str, Any] = {"hardware__learner__micro_batch_tokens": 128}


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("worker died: killed due to the node running low on memory"),
    ],
)
def test_every_library_says_it_in_its_own_words(error: Exception) -> None:
    with (
        pytest.raises(UserError, match=r"^memory ran out in sft \(out_of_memory\): lower hard"),
        explained(recipe, "sft"),
    ):
        raise error


@pytest.mark.parametrize("error", [RuntimeError("the learner died"), UserError("out of memory")])
def test_any_other_error_passes(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, explained(recipe, "sft"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("stage", "last"),
    [
        ("sft", "sft.max_tokens (now "),
        ("reward_model", "reward_model.max_tokens (now "),
        ("rl", "rl.rollout.max_new_tokens or rl.rollout.samples"),
        ("evaluate", "evaluate.max_new_tokens (now "),
        ("prepare_data", "a machine with more memory"),
    ],
)
def test_the_remedy_is_of_the_stage(stage: str, last: str) -> None:
    assert last in remedy(recipe("quickstart-rlhf"), stage)


def test_what_is_set_already_is_not_advised() -> None:
    plain = remedy(recipe(), "sft")
    assert "micro_batch_tokens (now 4096, at least 128)" in plain
    assert "gradient_checkpointing to true" in plain
    checkpointed = remedy(recipe("quickstart", **CHECKPOINTED), "sft")
    assert "gradient_checkpointing" not in checkpointed
    assert "it does not change the result" in checkpointed
    least = remedy(recipe("quickstart", **CHECKPOINTED, **SMALLEST), "sft")
    assert least.startswith("lower sft.max_tokens (now 128), or use a smaller model")
