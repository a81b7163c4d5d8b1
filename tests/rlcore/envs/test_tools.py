import asyncio

import pytest

from rlcore.envs.tools import ToolCall, ToolEnvironment, tool_names, written
from rlcore.envs.types import Step
from tests.rlcore.envs.samples import Shop


def stepped(*texts: str) -> list[Step]:
    environment = ToolEnvironment(Shop())

    async def play() -> list[Step]:
        await environment.reset({"stock": 3, "ground_truth": "CANARY"}, seed=0)
        return [await environment.step(text) for text in texts]

    return asyncio.run(play())


def buy(**arguments: object) -> str:
    return written(ToolCall("buy", arguments))


def test_state_lives_through_an_episode() -> None:
    first, second, last = stepped(buy(count=1), buy(count=1), "I have two.")
    assert [step.messages[0]["content"] for step in (first, second)] == ["2 left", "1 left"]
    assert first.messages[0]["role"] == "tool"
    assert (last.done, last.valid, list(last.messages)) == (True, True, [])


def test_what_a_tool_raises_is_its_result() -> None:
    (step,) = stepped(buy(count=9))
    assert step.messages[0]["content"] == "error: ValueError: only 3 are left"
    assert step.valid


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (written(ToolCall("bye", {})), "did you mean 'buy'"),
        (written(ToolCall("reset", {})), "there is no tool 'reset'"),
        (written(ToolCall("__init__", {})), "there is no tool '__init__'"),
        (buy(number=1), "buy: "),
        (buy(), "buy: missing a required argument"),
        ("<tool_call>{}", "write exactly one"),
    ],
)
def test_a_call_that_cannot_be_made_is_invalid_and_told(text: str, told: str) -> None:
    (step,) = stepped(text)
    assert not step.valid
    assert not step.done
    assert told in step.messages[0]["content"]


def test_public_methods_are_tools_in_their_order() -> None:
    assert tool_names(Shop) == ["buy", "wait"]
