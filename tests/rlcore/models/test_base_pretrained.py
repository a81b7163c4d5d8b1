"""What a finished run hands back can be used at once."""

from pathlib import Path

import pytest
import torch

from rlcore.models.base import load_pretrained
from schemas.errors import UserError
from tests.rlcore.models.scratch import copied


def test_the_model_answers_without_dropout_in_the_dtype_of_its_files(base: Path) -> None:
    model, tokenizer = load_pretrained(base)
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    ids = torch.tensor([tokenizer("1+2")["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_a_directory_whose_tokenizer_cannot_chat_is_refused(base: Path, tmp_path: Path) -> None:
    source = copied(base, tmp_path / "m")
    (source / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="has no chat template"):
        load_pretrained(source)
