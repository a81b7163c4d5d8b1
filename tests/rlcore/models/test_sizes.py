"""A model is counted without its weights being read."""

from pathlib import Path

import pytest

from rlcore.models.sizes import count_parameters, model_parameters
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection
from tests.rlcore.dry_run.small import qwen2


@pytest.mark.parametrize("tied", [True, False])
def test_a_directory_is_counted_from_its_headers(tmp_path: Path, tied: bool) -> None:
    model = qwen2(FromScratch(tie_word_embeddings=tied, vocab_size=300))
    model.save_pretrained(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("model*.safetensors"))) > 1
    assert count_parameters(tmp_path, tied=tied) == model.num_parameters()
    assert model_parameters(ModelSection(path="owner/name"), tmp_path) == model.num_parameters()


def test_a_model_from_scratch_counts_as_its_recipe_says(tmp_path: Path) -> None:
    """Before its tokenizer is trained, too, so that the dry run and the run agree."""
    scratch = FromScratch(vocab_size=512)
    model = ModelSection(from_scratch=scratch)
    assert model_parameters(model, tmp_path / "nothing") == qwen2(scratch).num_parameters()


@pytest.mark.parametrize("content", [b"", b"abc", b"\x10" + b"\0" * 7 + b"{", b"\xff" * 8 + b"{}"])
def test_a_damaged_weight_file_is_named_not_read_into_memory(
    tmp_path: Path, content: bytes
) -> None:
    """The first bytes say how long the header is: up to 16 EiB."""
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is not a readable safetensors file"):
        count_parameters(tmp_path, tied=False)
