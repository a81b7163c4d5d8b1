"""Coroutines side by side, prompts at once, functions by row: nobody pays for another's row."""

import time

import pytest

from rlcore.rewards.types import RewardRow
from schemas.errors import UserError
from schemas.rl import RewardFunction
from tests.rlcore.rewards.scoring import ERROR, HERE, TIMEOUT, Start, outcomes, rows


def test_rows_of_a_coroutine_wait_side_by_side_and_answer_in_order(start: Start) -> None:
    """An API that takes a second per row would take minutes for a batch."""
    worker = start("reward_samples:side_by_side")
    begun = time.monotonic()
    rewards = worker.score(rows(*["0.5", "0.1"] * 16), timeout_s=20)
    assert [reward.score for reward in rewards] == [0.5, 0.1] * 16
    assert time.monotonic() - begun < 32 * 0.3, "one waited for the other"


def test_a_coroutine_that_takes_too_long_is_cancelled_and_costs_no_other_row(start: Start) -> None:
    worker = start("reward_samples:side_by_side")
    rewards = worker.score(rows("0", "60", "raise", "0"), timeout_s=0.5)
    assert outcomes(rewards) == [("ok", 0.0), TIMEOUT, ERROR, ("ok", 0.0)]
    assert (
        rewards[1].detail == "reward_samples:side_by_side: no score within 0.5 s; it was cancelled"
    )
    lines = (HERE / "reward_samples.py").read_text().splitlines()
    where = lines.index("        raise KeyError(response)") + 1
    assert rewards[2].detail == f"KeyError: 'raise' (reward_samples.py line {where})"


def test_many_rows_with_long_answers_block_neither_side(start: Start) -> None:
    """Rows are handed over while answers come back: with both ways full, all would be late."""
    many = RewardFunction(name="reward_samples:side_by_side", concurrency=1024)
    worker = start(functions=(many,))
    rewards = worker.score(rows("0", *["raise" + "x" * 2000] * 1500), timeout_s=60)
    assert outcomes(rewards) == [("ok", 0.0), *[ERROR] * 1500]


@pytest.mark.slow
def test_a_coroutine_that_blocks_is_found_among_those_under_way(start: Start) -> None:
    """All of them stand still; each is tried again alone."""
    rewards = start("reward_samples:side_by_side").score(rows("0.1", "block", "0.2"), timeout_s=0.5)
    assert outcomes(rewards) == [("ok", 0.1), TIMEOUT, ("ok", 0.2)]
    assert rewards[1].detail == (
        "no score of reward_samples:side_by_side within 0.5 s; its process was killed"
    )


def batch(*prompts: list[str]) -> list[RewardRow]:
    return [
        RewardRow(f"t{g}-{i}", "s", text, "72", {}, "stop", 3, "prompt", group=f"g{g}")
        for g, texts in enumerate(prompts)
        for i, text in enumerate(texts)
    ]


@pytest.mark.parametrize("name", ["relative", "relative_async"])
def test_a_batch_function_gets_the_rows_of_one_prompt(start: Start, name: str) -> None:
    """Whatever else is scored with them."""
    worker = start(functions=(RewardFunction(name=f"reward_samples:{name}", batch=True),))
    asked = batch(["a", "aaa"], ["bb"], ["c", "c", "cccc"])
    rewards = worker.score(asked, timeout_s=10)
    assert [reward.score for reward in rewards] == [-1, 1, 0, -1, -1, 2]
    alone = worker.score(asked[3:], timeout_s=10)
    assert [reward.score for reward in alone] == [-1, -1, 2]


@pytest.mark.slow
def test_a_batch_that_hangs_is_tried_row_by_row(start: Start) -> None:
    worker = start(functions=(RewardFunction(name="reward_samples:relative", batch=True),))
    asked = batch(["a", "sleep", "aaa"], ["b", "bbb"])
    rewards = worker.score(asked, timeout_s=0.5)
    alone = ("ok", 0.0)
    assert outcomes(rewards) == [alone, TIMEOUT, alone, ("ok", -1.0), ("ok", 1.0)]


def test_a_batch_that_fails_is_an_error_of_its_rows_only(start: Start) -> None:
    worker = start(functions=(RewardFunction(name="reward_samples:relative", batch=True),))
    rewards = worker.score(batch(["raise", "a"], ["short", "a"], ["none", "bbbb"]), timeout_s=5)
    assert outcomes(rewards) == [ERROR] * 5 + [("ok", 0.0)]
    assert rewards[0].detail == rewards[1].detail
    assert rewards[0].detail.startswith("KeyError: 'raise' (reward_samples.py line ")
    assert rewards[2].detail.endswith("the batch function returned 1 results for 2 rows")
    assert rewards[4].detail == "the reward function returned None"


@pytest.mark.parametrize(
    ("name", "batch", "words"),
    [
        ("length", True, ["(prompt: str, response: str)", "batch = true", "must take (rows)"]),
        ("rich", True, ["must take (rows)", "leave batch out"]),
        ("relative", False, ["(rows)", "must take (prompt, response)", "batch = true"]),
    ],
)
def test_a_signature_that_does_not_go_with_batch_is_refused(
    start: Start, name: str, batch: bool, words: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        start(functions=(RewardFunction(name=f"reward_samples:{name}", batch=batch),))
    assert all(part in str(error.value) for part in words), error.value


def test_functions_choose_their_rows_by_source_and_style(start: Start) -> None:
    functions = (
        RewardFunction(name="reward_samples:rich", data_sources=("math",)),
        RewardFunction(name="reward_samples:length", styles=("model", "judge")),
    )
    kinds = [("math", "rule"), ("chat", "judge"), ("math", "judge"), ("chat", "rule")]
    asked = [
        RewardRow(f"t{i}", source, "72", "72", {}, "stop", 1, "prompt", f"g{i}", style)
        for i, (source, style) in enumerate(kinds)
    ]
    rewards = start(functions=functions).score(asked, timeout_s=5)
    assert [reward.score for reward in rewards] == [1.0, 6.02, 7.02, None]
    assert [reward.correct for reward in rewards] == [True, None, True, None]
    assert "no reward function scores data_source 'chat'" in rewards[3].detail
