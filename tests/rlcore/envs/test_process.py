"""Real child processes: what dies, hangs or raises costs its own episode, and not even that."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rlcore.envs.process import ATTEMPTS, EnvironmentProcess, tools_of
from rlcore.envs.registry import BUILTIN
from rlcore.envs.tools import ToolCall, written
from rlcore.envs.types import Answer, Call
from schemas.environment import EnvironmentSection
from schemas.errors import UserError

pytestmark = pytest.mark.timeout(120)
SAMPLES = "tests.rlcore.envs.samples"
# What a policy would try that looks for the answer.
CALLS = [
    written(ToolCall("calculate", {"expression": "ground_truth"})),
    written(ToolCall("python", {"program": "print({**globals(), **__import__('os').environ})"})),
    written(ToolCall("reset", {})),
]


def section(name: str, **fields: object) -> EnvironmentSection:
    return EnvironmentSection.model_validate({"name": f"{SAMPLES}:{name}", **fields})


@pytest.fixture(scope="module")
def counter() -> Iterator[EnvironmentProcess]:
    process = EnvironmentProcess(section("Counter", timeout_s=1.0))
    yield process
    process.close()


def begun(process: EnvironmentProcess, names: Sequence[str]) -> None:
    calls = [Call(name, row={}, seed=index) for index, name in enumerate(names)]
    answers = process.exchange(calls, len(calls))
    assert not any(answer.failure for answer in answers)


def said(process: EnvironmentProcess, **texts: str) -> dict[str, Answer]:
    calls = [Call(name, text) for name, text in texts.items()]
    return {answer.episode: answer for answer in process.exchange(calls, len(calls))}


def content(answer: Answer) -> str:
    assert answer.step is not None, answer.failure
    return answer.step.messages[0]["content"]


def test_a_dead_process_loses_no_state(counter: EnvironmentProcess, tmp_path: Path) -> None:
    """Also of episodes that were not under way when it died; half a character, which no tokenizer
    takes, is told as the same one again."""
    begun(counter, ["a", "b", "c"])
    said(counter, a="one", b="half", c="eins")
    death = f"die once {tmp_path}/died"
    answers = said(counter, a=death, b="dos")
    assert content(answers["a"]) == f"0 one {death}"
    assert content(answers["b"]) == "1 caf? dos"
    assert content(said(counter, c="zwei")["c"]) == "2 eins zwei"


@pytest.mark.slow
def test_a_call_that_always_kills_is_given_up_and_takes_no_other_with_it(
    counter: EnvironmentProcess,
) -> None:
    begun(counter, ["a", "b", "c", "d"])
    answers = said(counter, a="one", b="die", c="three", d="four")
    assert "died" in answers.pop("b").failure
    assert {name: content(answer) for name, answer in answers.items()} == {
        "a": "0 one",
        "c": "2 three",
        "d": "3 four",
    }


def test_what_raises_is_tried_on_a_fresh_environment(counter: EnvironmentProcess) -> None:
    begun(counter, ["a", "b"])
    answers = said(counter, a="raise", b="fine")
    assert answers["a"].failure.startswith("ValueError: no such move (samples.py line ")
    assert content(answers["b"]) == "1 fine"
    assert ATTEMPTS == 3


def test_its_own_time_out_is_an_error_of_it_alone(counter: EnvironmentProcess) -> None:
    """It passed for a step over our limit, after which the process ends and all begins again."""
    begun(counter, ["a", "b"])
    answers = said(counter, a="time out", b="fine")
    assert "TimeoutError: the search does not answer" in answers["a"].failure
    assert content(answers["b"]) == "1 fine"


def test_a_step_that_takes_too_long_is_an_observation_and_did_not_happen(
    counter: EnvironmentProcess,
) -> None:
    begun(counter, ["a", "b"])
    answers = said(counter, a="hang", b="fine")
    assert content(answers["a"]) == "error: no result within 1 s"
    assert content(answers["b"]) == "1 fine"
    assert content(said(counter, a="more")["a"]) == "0 more"


def test_ended_episodes_are_forgotten(counter: EnvironmentProcess) -> None:
    begun(counter, ["a"])
    counter.end(["a"])
    begun(counter, ["a"])
    assert content(said(counter, a="one")["a"]) == "0 one"


def test_an_environment_that_does_not_repeat_is_found() -> None:
    """Going on with another state than the policy saw would train on episodes that never were."""
    process = EnvironmentProcess(section("Random"))
    begun(process, ["a", "b"])
    said(process, a="one", b="one")
    answers = said(process, a="die", b="two")
    assert "draw everything that is random from the seed" in answers["b"].failure
    process.close()


def test_tools_are_described_for_the_template() -> None:
    tools = tools_of(section("Shop"))
    assert [tool["function"]["name"] for tool in tools] == ["buy", "wait"]
    assert tools[0]["function"]["parameters"]["properties"]["count"]["type"] == "integer"


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("NoTools", {}, r"has neither step\(text\) nor a public method to call as a tool"),
        ("Undocumented", {}, r"the tool buy\(\) cannot be described to a policy .* 'Args:'"),
        ("Missing", {}, r"has no Missing\(\)"),
        ("Counter", {"options": {"turn": 1}}, r"its options are turns"),
        ("Counter", {"env": ["NO_SUCH_VARIABLE"]}, r"environment.env\[0\] = 'NO_SUCH_VARIABLE'"),
        ("Keyed", {}, r"Keyed': .* failed \(KeyError: 'SEARCH_KEY' \(samples.* environment\.env"),
        ("Counter", {"memory_gib": 0.01}, r"environment.memory_gib = 0.01 is too little"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    name: str, fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        tools_of(section(name, **fields), build=True)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'calculator'"):
        EnvironmentProcess(EnvironmentSection(name="calculater"))


def test_an_environment_without_examples_says_what_to_do(counter: EnvironmentProcess) -> None:
    assert counter.demonstrations([]) == []
    with pytest.raises(UserError, match="set demonstrations to 0 or add the method"):
        counter.demonstrations([1, 2])


@pytest.mark.slow
def test_what_blocks_its_whole_process_costs_its_own_step_only(counter: EnvironmentProcess) -> None:
    begun(counter, ["a", "b", "c"])
    answers = said(counter, a="fine", b="block", c="fine")
    assert content(answers["b"]) == "error: no result within 1 s"
    assert (content(answers["a"]), content(answers["c"])) == ("0 fine", "2 fine")


def test_steps_that_wait_for_their_turn_are_not_late() -> None:
    """40 steps of .15 s, 4 at a time, take longer than the second that one may take."""
    process = EnvironmentProcess(section("Counter", timeout_s=1.0, concurrency=4))
    names = [f"e{number}" for number in range(40)]
    begun(process, names)
    answers = said(process, **dict.fromkeys(names, "work"))
    assert [content(answers[name]) for name in names] == [f"{n} work" for n in range(40)]
    process.close()


@pytest.mark.parametrize("name", BUILTIN)
def test_no_environment_of_ours_tells_the_ground_truth(name: str) -> None:
    process = EnvironmentProcess(EnvironmentSection.model_validate({"name": name}))
    row = {"data_source": "gsm8k", "ground_truth": "CANARY", "prompt": [], "answer": "CANARY"}
    answers = process.exchange([Call("a", row=row, seed=1)], 1)
    for text in ("left", "#### 1", "<tool_call>{}</tool_call>", *CALLS):
        answers += process.exchange([Call("a", text)], 1)
    process.close()
    told = [m["content"] for a in answers if a.step for m in a.step.messages]
    told += [m["content"] for a in answers if a.start for m in a.start.messages]
    assert told
    assert not [text for text in told if "CANARY" in text]
