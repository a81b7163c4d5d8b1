"""A class that is not on the list is tried on its own weights before a run starts."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.learner import packing_check
from rlcore.learner.packing_check import try_architecture
from rlcore.models import architectures
from schemas.errors import UserError
from tests.rlcore.learner.architectures import write_architecture


@pytest.mark.parametrize("name", ["Phi", "Falcon", "OPT", "Bloom"])
def test_a_class_that_can_be_trained_passes(name: str, tmp_path: Path) -> None:
    write_architecture(tmp_path, name)
    before = torch.random.get_rng_state()
    try_architecture(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_class_that_reads_ahead_is_refused_by_name(tmp_path: Path) -> None:
    from transformers import BertConfig, BertLMHeadModel

    shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertLMHeadModel(BertConfig(vocab_size=61, intermediate_size=32, **shape)).save_pretrained(
        tmp_path
    )
    with pytest.raises(UserError, match="architecture BertLMHeadModel changes its"):
        try_architecture(tmp_path)


def test_a_class_that_changes_its_logits_unknown_to_us_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architectures, "MULTIPLIERS", ())
    write_architecture(tmp_path, "Cohere", logit_scale=0.3)
    with pytest.raises(UserError, match="CohereForCausalLM changes its logits"):
        try_architecture(tmp_path)


def test_a_class_that_is_another_model_once_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose file names transformers could not undo."""
    write_architecture(tmp_path, "Phi")

    def lost(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        return {name: 0.5 * tensor for name, tensor in model.state_dict().items()}

    monkeypatch.setattr(packing_check, "file_state", lost)
    with pytest.raises(UserError, match=r"PhiForCausalLM, which once written .* other log-probs"):
        try_architecture(tmp_path)


def test_a_listed_class_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_architecture(tmp_path, "Llama")
    monkeypatch.delattr(packing_check, "load_model")
    try_architecture(tmp_path)
