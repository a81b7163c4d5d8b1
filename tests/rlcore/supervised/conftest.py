"""A tokenizer of a few hundred tokens."""

from typing import Any

import pytest

from rlcore.models.base import build_base_model
from rlcore.models.tokenizer import load_tokenizer
from schemas.model import FromScratch, ModelSection


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = ModelSection(
        from_scratch=FromScratch(hidden_size=16, num_heads=2, num_layers=1, intermediate_size=16)
    )
    path = tmp_path_factory.mktemp("model")
    build_base_model(model, path, texts=["What is 2 + 3? 2+3=5\n#### 5", "A: 5"] * 20, seed=0)
    return load_tokenizer(path)
