"""How a base model is sampled by default stays with it, and ends no export."""

from typing import Any

import pytest
from transformers import GenerationConfig

from rlcore.models.stop_tokens import make_sampling_consistent


@pytest.mark.parametrize(
    ("given", "do_sample", "left"),
    [
        ({"temperature": 0.9, "top_p": 0.6}, True, {"temperature": 0.9, "top_p": 0.6}),
        ({"top_k": 20}, True, {"top_k": 20}),
        ({"do_sample": False, "temperature": 0.6, "min_p": 0.1}, False, {}),
        ({"do_sample": True, "temperature": 0.6}, True, {"temperature": 0.6}),
        ({"temperature": 1.0, "top_p": 1.0}, None, {"temperature": 1.0, "top_p": 1.0}),
        ({"repetition_penalty": 1.1}, None, {"repetition_penalty": 1.1}),
    ],
)
def test_do_sample_agrees_with_the_rest(given: Any, do_sample: Any, left: Any) -> None:
    config = GenerationConfig(**given)
    make_sampling_consistent(config)
    assert config.do_sample is do_sample
    found = {name: getattr(config, name) for name in {*given, *left} - {"do_sample"}}
    assert {name: value for name, value in found.items() if value is not None} == left
    config.validate(strict=True)
