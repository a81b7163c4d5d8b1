"""Four of the architectures of ``make architectures``, through the whole pipeline."""

import pytest

from flows.places import ROOT
from rlcore.models.architectures import LISTED
from tests.architectures import try_all


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("GPTNeoXForCausalLM", True),  # another name in memory
        ("Qwen3MoeForCausalLM", True),  # experts that are one tensor in memory
        ("Gemma2ForCausalLM", True),  # capped logits and attention, windows
        ("FalconH1ForCausalLM", False),  # a state that goes on across documents
    ],
)
def test_a_model_goes_through_the_pipeline(name: str, packed: bool) -> None:
    (row,) = try_all([name])
    assert (row.problem, row.packed) == ("", packed)
    assert row.gap is not None
    assert row.gap < 1e-4
    assert row.vllm == "yes"


@pytest.mark.slow  # make architectures writes it, in ten minutes
def test_the_document_has_a_row_of_every_listed_class() -> None:
    text = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip(" `") for line in text.splitlines() if line.startswith("| `")]
    assert rows == list(LISTED)
