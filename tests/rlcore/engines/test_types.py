"""Bad requests and engine settings end in one sentence that names the field and the remedy."""

import dataclasses

import pytest

from rlcore.engines.types import TurnRequest, check_requests
from schemas.errors import UserError


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"token_ids": []}, "request 'b' is empty"),
        ({"token_ids": [10]}, r"request 'b' holds a token id outside \[0, 10\)"),
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
