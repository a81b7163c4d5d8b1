"""Bad requests and engine settings end in one sentence that names the field and the remedy."""

import dataclasses

import pytest

from rlcore.engines.types import EngineSpec, Sampling, check_requests
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
    ("prompts", "seeds", "sentence"),
    [
        ([[1], [2]], [0], "got 2 prompts and 1 seeds"),
        ([[1], []], [0, 1], r"prompts\[1\] is empty"),
        ([[1], [10]], [0, 1], r"prompts\[1\] holds a token id outside \[0, 10\)"),
        ([[1], [2]], [0, -1], r"seeds\[1\] = -1 must lie in"),
        ([[1] * 8], [0], r"prompts\[0\] has 8 tokens and max_model_len is 8; keep prompts at 7"),
    ],
)
def test_requests_are_checked_before_the_engine_runs(
    prompts: list[list[int]], seeds: list[int], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        check_requests(prompts, seeds, max_model_len=8, vocab_size=10)
