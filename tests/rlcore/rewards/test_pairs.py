"""Pairs are compared in both orders, asked for once, and without a verdict never a loss."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tenacity import wait_fixed

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.rewards.judges.client import CallsSpent
from rlcore.rewards.pairs import Comparison, Pair, compare
from rlcore.rewards.unscored_rows import RewardFailureError
from schemas.recipe import Recipe
from tests.rlcore.rewards.judges.asking import judge
from tests.rlcore.rewards.judges.server import (
    JudgeServer,
    Reply,
    judge_server,
    nonce_of,
    pair_in,
    prefers,
    says,
)

TEMPLATE = "Question: {prompt}\n{response_a}\nor\n{response_b}\nWhich is better?"
PAIRS = [Pair("2 + 2?", "4", "4", "five"), Pair("2 + 2?", "4", "6", "6")]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait 10 ms where a server asks for no time."""
    monkeypatch.setattr("rlcore.rewards.judges.client._BACKOFF", wait_fixed(0.01))


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with judge_server(prefers(len)) as one:
        yield one


def recipe(folder: Path, server: JudgeServer, **keys: Any) -> Recipe:
    fraction = keys.pop("fraction", 0.0)
    given = judge(server.url, template=TEMPLATE, **keys).model_dump()
    changes = {"judges.taste": given, "evaluate.win_rate": {"judge": "taste"}}
    limits = {"store": str(folder / "store"), "reward.max_error_fraction": fraction}
    return load_recipe("quickstart", {**changes, **limits}, directory=RECIPES)


def asked(folder: Path, server: JudgeServer, pairs: Any = None, **keys: Any) -> list[Comparison]:
    given = recipe(folder, server, **keys)
    return compare(given, "taste", pairs or PAIRS, rows="pairs", log=lambda _: None)


def test_a_pair_is_read_in_both_orders_and_equal_responses_by_nobody(
    tmp_path: Path, server: JudgeServer
) -> None:
    different, same = asked(tmp_path, server)
    assert (different.before, different.after, different.value) == (0.0, 0.0, 0.0)
    assert (same.value, same.asked, same.verdicts_json("taste")) == (0.5, False, None)
    assert sorted(map(pair_in, server.requests)) == [("4", "five"), ("five", "4")]
    text = server.requests[0]["messages"][0]["content"]
    assert text.startswith("Question: 2 + 2?\nBEGIN A ")


def test_the_order_that_decides_is_seen(tmp_path: Path, server: JudgeServer) -> None:
    server.answer = says("A")
    assert asked(tmp_path, server)[0].before == 1.0
    assert asked(tmp_path, server)[0].after == 0.0
    server.answer = says("tie")
    assert asked(tmp_path, server, version="2")[0].value == 0.5


def test_a_rerun_asks_nothing_twice(tmp_path: Path, server: JudgeServer) -> None:
    first = asked(tmp_path, server)
    assert asked(tmp_path, server) == first
    assert len(server.requests) == 2


FAULTS = {
    "429": Reply(status=429),
    "500": Reply(status=500),
    "hang": Reply(hang=True),
    "no verdict": Reply("I like both."),
    "another verdict": None,
    "NaN": Reply(raw=b"NaN"),
    "no choices": Reply(raw=b'{"id": "1", "object": "chat.completion", "choices": []}'),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_pair_without_a_verdict_has_no_value(
    tmp_path: Path, server: JudgeServer, fault: str
) -> None:
    """A loss, or a tie, would be a preference that nobody has."""
    well = prefers(len)

    def answer(request: dict[str, Any], number: int) -> Reply:
        if pair_in(request)[0] == "4":
            return FAULTS[fault] or Reply(f"VERDICT {nonce_of(request)}: C")
        return well(request, number)

    server.answer = answer
    limits = {"timeout_s": 0.5, "retries": 1}
    found = asked(tmp_path, server, limits=limits, fraction=0.5)[0]
    assert (found.before, found.after, found.value) == (None, 0.0, None)
    again = fault in ("429", "500", "hang")
    assert len(server.requests) == (3 if again else 2)
    with pytest.raises(RewardFailureError, match="of 2 pairs could not be scored"):
        asked(tmp_path, server, limits=limits, fraction=0.4)


def test_a_judge_that_is_gone_is_not_asked_about_every_pair(
    tmp_path: Path, server: JudgeServer
) -> None:
    """It kept a run busy for as long as all of its questions took to fail."""
    server.answer = lambda request, number: Reply(status=500)
    pairs = [Pair("?", None, f"a{n}", f"b{n}") for n in range(300)]
    with pytest.raises(RewardFailureError, match=r"of 600 pairs .* the others were not tried"):
        asked(tmp_path, server, pairs, limits={"retries": 0})
    assert len(server.requests) == 256


def test_a_failure_that_passes_is_nothing(tmp_path: Path, server: JudgeServer) -> None:
    well = prefers(len)
    server.answer = lambda request, number: (
        Reply(status=500) if number < 3 else well(request, number)
    )
    assert asked(tmp_path, server, limits={"retries": 2})[0].value == 0.0


def test_no_more_calls_are_made_than_allowed(tmp_path: Path, server: JudgeServer) -> None:
    pairs = [Pair("?", None, "a" * n, "b" * n) for n in range(1, 5)]
    with pytest.raises(CallsSpent, match=r"judges.taste.max_calls = 5 is reached"):
        asked(tmp_path, server, pairs, max_calls=5)
    assert len(server.requests) == 5
    asked(tmp_path, server, pairs, max_calls=8)
    assert len(server.requests) == 8
