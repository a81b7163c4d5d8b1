"""Bad requests and engine settings end in one sentence that names the field and the remedy."""

import dataclasses

import pytest

from rlcore.engines.types import EngineSpec, Sampling, TurnRequest, check_requests
from schemas.errors import UserError


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("temperature", -0.5, r"temperature = -0\.5 must lie in \[0, 2\.0\]; use 0 for greedy"),
        ("temperature", float("nan"), "temperature = nan must lie in"),
        ("temperature", 2.5, r"temperature = 2\.5 must lie in"),
        ("temperature", 0.001, r"temperature = 0\.001 is below 0\.01"),
        ("top_p", 0.0, r"top_p = 0\.0 must lie in \(0, 1\]"),
        ("top_p", 1.1, r"top_p = 1\.1 must lie in"),
        ("top_k", 0, "top_k = 0 must be -1 or >= 1"),
        ("max_new_tokens", 0, "max_new_tokens = 0 must be >= 1"),
        ("stop_token_ids", (3, -1), r"stop_token_ids holds \[-1\]"),
    ],
)
def test_sampling_refuses(field: str, value: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        dataclasses.replace(Sampling(), **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("dtype", "float16", "dtype = 'float16' is unknown; .* did you mean '"),
        ("device", "gpu", "device = 'gpu' is unknown; use one of cpu, cuda"),
        ("gpu_memory_utilization", 1.5, r"gpu_memory_utilization = 1\.5 must lie in"),
        ("max_model_len", 0, "max_model_len = 0 must be >= 1"),
        ("kv_cache_gib", 0.0, r"kv_cache_gib = 0\.0 must be > 0"),
        ("block_size", 16, "block_size = 16 must be a multiple of 32"),
    ],
)
def test_engine_spec_refuses(field: str, value: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        dataclasses.replace(EngineSpec(model_dir="model"), **{field: value})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"token_ids": []}, "request 'b' is empty"),
        ({"token_ids": [10]}, r"request 'b' holds a token id outside \[0, 10\)"),
        ({"seed": -1}, "seed -1 of request 'b' must lie in"),
        ({"max_new_tokens": 0}, "max_new_tokens = 0 of request 'b' must be >= 1"),
        ({"token_ids": [1] * 8}, "request 'b' has 8 tokens and max_model_len is 8; .* at 7"),
    ],
)
def test_requests_are_checked_before_the_engine_runs(
    wrong: dict[str, object], sentence: str
) -> None:
    right = TurnRequest("a", [1], 0, 4)
    check_requests([right], max_model_len=8, vocab_size=10)
    requests = [right, dataclasses.replace(right, key="b", **wrong)]
    with pytest.raises(UserError, match=sentence):
        check_requests(requests, max_model_len=8, vocab_size=10)
