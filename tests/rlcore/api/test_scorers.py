"""Functions of the caller as a reward: failures, and the source of verdicts on correctness."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rlcore.api.scorers import FunctionScorers, check_signature
from rlcore.rewards.types import Reward, RewardRow
from schemas.errors import UserError


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The caller's loop, in a thread of its own; the test is the training thread."""
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


def rows(*responses: str) -> list[RewardRow]:
    return [
        RewardRow(f"t{i}", "s", text, None, {}, "stop", 1, prompt="p")
        for i, text in enumerate(responses)
    ]


Score = Callable[..., list[Reward]]


@pytest.fixture
def score(loop: asyncio.AbstractEventLoop) -> Score:
    def run(reward_fn: Any, verifier_fn: Any = None, *responses: str, **options: Any) -> Any:
        arguments = {"threshold": 0.5, "timeout_s": 5.0, **options}
        scorers = FunctionScorers(reward_fn, verifier_fn, loop=loop, **arguments)
        return scorers.score(rows(*(responses or ("a",))))

    return run


def test_an_exception_costs_its_own_row_only(score: Score) -> None:
    def fails_on_b(prompt: str, response: str) -> float:
        return {"a": 1.0, "c": 0.25}[response]

    a, b, c = score(fails_on_b, None, "a", "b", "c")
    assert (a.score, a.correct, a.outcome) == (1.0, True, "ok")
    assert (b.score, b.correct, b.outcome) == (None, None, "error")
    assert re.fullmatch(r"KeyError: 'b' \(test_scorers.py line \d+\)", b.detail)
    assert (c.score, c.correct, c.outcome) == (0.25, False, "wrong")


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "1", {"points": 1}])
def test_what_is_no_score_is_unscorable(score: Score, value: Any) -> None:
    (reward,) = score(lambda prompt, response: value)
    assert (reward.score, reward.outcome) == (None, "error")
    assert reward.detail


def test_numbers_of_any_kind_and_dicts_are_scores(score: Score) -> None:
    for value, expected in [(True, 1.0), (2, 2.0), (np.float32(0.5), 0.5), ({"score": 3}, 3.0)]:
        (reward,) = score(lambda prompt, response, value=value: value)
        assert reward.score == expected
    (reward,) = score(lambda prompt, response: {"score": 0.1, "acc": True, "format": 1.0})
    assert reward.correct is True, "acc outranks the threshold"
    assert reward.parts == {"format": 1.0}
    (reward,) = score(lambda prompt, response: {"score": 1, "answer": "\ud83d"})
    assert reward.answer == "?", "no table takes half a character"


def test_the_threshold_is_exclusive_and_can_be_moved(score: Score) -> None:
    verdicts = [score(lambda p, r, v=v: v)[0].correct for v in (0.5, 0.51)]
    assert verdicts == [False, True]
    assert score(lambda p, r: -0.5, threshold=-1.0)[0].correct is True


def test_the_verifier_outranks_the_reward_and_must_answer(score: Score) -> None:
    (reward,) = score(lambda p, r: 0.0, lambda p, r: True)
    assert (reward.score, reward.correct) == (0.0, True)
    (unsure,) = score(lambda p, r: 1.0, lambda p, r: None)
    assert (unsure.score, unsure.outcome, unsure.detail) == (
        None,
        "error",
        "verifier_fn returned None",
    )

    def broken(prompt: str, response: str) -> bool:
        raise OSError("no service")

    assert score(lambda p, r: 1.0, broken)[0].detail.startswith("OSError: no service (test_scor")


def test_coroutines_are_awaited_side_by_side_and_timed_out(score: Score) -> None:
    async def judge(prompt: str, response: str) -> float:
        await asyncio.sleep(10 if response == "slow" else 0.01)
        return 1.0

    async def verify(prompt: str, response: str) -> bool:
        return response == "right"

    slow, right, wrong = score(judge, verify, "slow", "right", "wrong", timeout_s=0.3)
    assert (slow.score, slow.outcome) == (None, "timeout")
    assert "no score within 0.3 s" in slow.detail
    assert (right.correct, wrong.correct) == (True, False)
    assert right.seconds < 0.3


def test_a_timeout_of_the_function_itself_is_an_error(score: Score) -> None:
    def impatient(prompt: str, response: str) -> float:
        raise TimeoutError("judge is down")

    (reward,) = score(impatient)
    assert reward.outcome == "error"
    assert reward.detail.startswith("TimeoutError: judge is down (test_scorers.py line ")


def test_the_function_sees_prompt_and_response(score: Score) -> None:
    seen: list[tuple[str, str]] = []
    score(lambda prompt, response: seen.append((prompt, response)), None, "x")
    assert seen == [("p", "x")]


@pytest.mark.parametrize("function", [lambda: 1.0, lambda a, b, c: 1.0, 7])
def test_a_function_of_another_signature_is_refused(function: Any) -> None:
    with pytest.raises(UserError, match="reward_fn"):
        check_signature(function, "reward_fn")
    check_signature(lambda prompt, response, limit=3: 1.0, "reward_fn")
