"""An MCP server's tools as an environment: calls, refusals, and what is left when one is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlcore.envs.process import EnvironmentProcess
from rlcore.envs.tools import ToolCall, written
from rlcore.envs.types import Answer, Call, Step
from schemas.environment import EnvironmentSection
from schemas.errors import UserError

pytestmark = pytest.mark.timeout(120)
SERVER = str(Path(__file__).parent / "mcp_server.py")


def _section(
    *command: str, timeout_s: float = 20.0, env: tuple[str, ...] = ()
) -> EnvironmentSection:
    return EnvironmentSection(
        name="mcp", command=command or ("python", SERVER), version="1", timeout_s=timeout_s, env=env
    )


@pytest.fixture(scope="module")
def shop() -> Iterator[EnvironmentProcess]:
    os.environ["SHOP_NAME"] = "corner"
    process = EnvironmentProcess(_section(env=("SHOP_NAME",)))
    yield process
    process.close()


def _begin(process: EnvironmentProcess, *episodes: str) -> None:
    answers = process.exchange([Call(name, row={}, seed=1) for name in episodes], len(episodes))
    assert [answer.failure for answer in answers] == [""] * len(episodes)


def _asked(process: EnvironmentProcess, episode: str, text: str) -> Answer:
    (answer,) = process.exchange([Call(episode, text)], 1)
    return answer


def _step(process: EnvironmentProcess, tool: str, episode: str = "a", **arguments: Any) -> Step:
    answer = _asked(process, episode, written(ToolCall(tool, arguments)))
    assert answer.step is not None, answer.failure
    return answer.step


def _said(step: Step) -> str:
    (message,) = step.messages
    assert message["role"] == "tool"
    return message["content"]


def _pid(process: EnvironmentProcess) -> int:
    """Return the server's process id, asked in an episode of its own: it is another one later."""
    _begin(process, "who")
    number = int(_said(_step(process, "pid", "who")))
    process.end(["who"])
    return number


@pytest.mark.slow
def test_calls_reach_the_server_and_its_tools_are_described(shop: EnvironmentProcess) -> None:
    """A server's tools cannot be called, or a wrong call ends the run instead of the policy being
    told."""
    described = [tool["function"] for tool in shop.tools()]
    assert [tool["name"] for tool in described][:2] == ["price", "variable"]
    assert described[0]["description"].startswith("Return the price of some things.")
    assert described[0]["parameters"]["required"] == ["thing"]
    _begin(shop, "a")
    assert _step(shop, "price", thing="egg", count=2) == Step(
        [{"role": "tool", "content": "6 coins"}]
    )
    failed = _step(shop, "fail", why="closed")
    assert failed.valid
    assert _said(failed).startswith("error: ")
    assert _said(_step(shop, "variable", name="SHOP_NAME")) == "corner"
    assert _said(_step(shop, "variable", name="PYTHONPATH")) == "(not set)"
    assert _said(_step(shop, "nothing")) == ""
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("price", {"thin": "egg"}, "error: price: 'thing' is a required property"),
        ("price", {"thing": 3}, "error: price: 3 is not of type 'string'"),
        ("prise", {}, "did you mean 'price'?"),
    ]
    for tool, arguments, said in wrong:
        step = _step(shop, tool, **arguments)
        assert (step.valid, step.done) == (False, False)
        assert said in _said(step)
    broken = _asked(shop, "a", "<tool_call>price</tool_call>").step
    assert broken is not None
    assert not broken.valid
    assert _asked(shop, "a", "#### 6").step == Step([], done=True)


@pytest.mark.slow  # starts the server five times
def test_a_killed_server_or_process_costs_a_retry_and_leaves_nothing(tmp_path: Path) -> None:
    """A server that dies ends the run, or servers pile up on the machine."""
    process = EnvironmentProcess(_section())
    try:
        _begin(process, "a", "b")
        assert _said(_step(process, "price", thing="egg")) == "3 coins"
        first = _pid(process)
        os.kill(first, signal.SIGKILL)
        assert _said(_step(process, "price", thing="bread")) == "5 coins"
        second = _pid(process)
        assert second != first
        child = psutil.Process(second).parent()
        assert child is not None
        server = psutil.Process(second)
        child.kill()
        psutil.wait_procs([server], timeout=300)
        assert not server.is_running()
        assert _said(_step(process, "price", "b", thing="tea")) == "3 coins"
        # Dies with the call under way, and answers the same call when it is made again.
        marker = str(tmp_path / "died")
        assert _said(_step(process, "die", marker=marker)) == "alive"
        last = psutil.Process(_pid(process))
    finally:
        process.close()
    psutil.wait_procs([last], timeout=300)
    assert not last.is_running()


@pytest.mark.slow  # starts the server four times
def test_a_call_that_always_ends_the_server_loses_its_episode_only() -> None:
    """One poisonous call makes the process start again for ever."""
    process = EnvironmentProcess(_section())
    try:
        _begin(process, "a", "b")
        answer = _asked(process, "a", written(ToolCall("die", {"marker": ""})))
        assert answer.failure == "its MCP server ended"
        assert _said(_step(process, "price", "b", thing="tea")) == "3 coins"
    finally:
        process.close()


@pytest.mark.slow  # starts the server twice
def test_a_call_that_takes_too_long_is_an_observation() -> None:
    """A slow tool stops the rollout, or the other episodes."""
    process = EnvironmentProcess(_section(timeout_s=3.0))
    try:
        _begin(process, "a", "b")
        calls = [
            Call("a", written(ToolCall("wait", {"seconds": 60}))),
            Call("b", written(ToolCall("price", {"thing": "tea"}))),
        ]
        said = {a.episode: a.step for a in process.exchange(calls, 2)}
        assert said["b"] == Step([{"role": "tool", "content": "3 coins"}])
        assert said["a"] == Step([{"role": "tool", "content": "error: no result within 3 s"}])
        assert _said(_step(process, "price", thing="egg")) == "3 coins"
    finally:
        process.close()


@pytest.mark.slow  # four processes
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("no-such-program",), "there is no program 'no-such-program' on PATH"),
        (("python", "-c", "raise ValueError('no licence')"), "(ValueError: no licence)"),
        (("cat",), "environment.command = 'cat' does not speak MCP on its standard input"),
        (("python", SERVER, "no-tool"), "the server has no tool; start one that has"),
    ],
)
def test_what_is_no_server_is_refused(command: tuple[str, ...], said: str) -> None:
    """A mistake in the command is found in the middle of a rollout, or not explained."""
    with pytest.raises(UserError) as refused:
        EnvironmentProcess(_section(*command))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
