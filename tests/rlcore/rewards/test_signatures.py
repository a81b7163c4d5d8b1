"""A reward function is called as its signature says, or refused: never with other things."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlcore.rewards.signatures import takes_ground_truth
from schemas.errors import UserError


class Judge:
    def __call__(self, prompt: str, response: str) -> float:
        return 1.0


def _yields(prompt: str, response: str) -> Iterator[float]:
    yield 1.0


TAKEN: dict[str, tuple[Any, bool]] = {
    "short": (lambda prompt, response: 1.0, False),
    "short, other names": (lambda question, answer: 1.0, False),
    "short, with more": (lambda prompt, completion, scale=1.0, **more: 1.0, False),
    "long": (lambda data_source, solution, ground_truth, extra_info: 1.0, True),
    "verl's": (lambda data_source, solution_str, ground_truth, extra_info=None: 1.0, True),
    "long, other names": (lambda a, response, truth, info: 1.0, True),
    "anything": (lambda *given: 1.0, True),
    "an instance": (Judge(), False),
}


@pytest.mark.parametrize("case", TAKEN)
def test_both_forms_are_taken_under_any_harmless_names(case: str) -> None:
    function, long = TAKEN[case]
    assert takes_ground_truth(function, {}, "m:f", "reward.functions[0]") is long


REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "TRL": (
        lambda prompts, completions, **kwargs: [1.0],
        {},
        r"has TRL's signature \(prompts, completions, \*\*kwargs\), .*take \(prompt, response\) or",
    ),
    "TRL with a column": (
        lambda completions, ground_truth, **kwargs: [1.0],
        {},
        r"has TRL's signature .*, or \(rows\) with p\.batch = true$",
    ),
    "a generator": (
        _yields,
        {},
        "is a generator; return the score",
    ),
    "verl's old form": (
        lambda solution_str, ground_truth: 1.0,
        {},
        "called with .prompt, response., so that its solution_str would be the prompt",
    ),
    "the wrong way round": (lambda response, prompt: 1.0, {}, "its response would be the prompt"),
    "response and truth": (
        lambda response, ground_truth: 1.0,
        {},
        "its response would be the prompt; it must take",
    ),
    "text and truth": (lambda x, ground_truth: 1.0, {}, "ground_truth would be the response"),
    "a truth that never comes": (
        lambda prompt, response, ground_truth=None: 1.0,
        {},
        "its ground_truth is never given",
    ),
    "a prompt in the long form": (
        lambda prompt, response, ground_truth, extra_info: 1.0,
        {},
        "its prompt would be the data_source",
    ),
    "one argument": (lambda text: 1.0, {}, r"has the signature \(text\); with the options \[\]"),
    "three arguments": (lambda a, b, c: 1.0, {}, "it must take .prompt, response. or .data_source"),
    "an option of another name": (
        lambda prompt, response, *, bonus=0.0: 1.0,
        {"bonsu": 1},
        r"^p\.options\.bonsu is not a parameter of 'm:f'.*; did you mean 'bonus'\?",
    ),
    "an option that is an argument": (
        lambda prompt, response: 1.0,
        {"response": "x"},
        r"with the options \['response'\] it must take",
    ),
    "a class": (Judge, {}, "is a class; name a function"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_function_that_would_be_called_with_other_things_is_refused(case: str) -> None:
    """It would not fail: it would give every answer the same wrong score."""
    function, options, sentence = REFUSED[case]
    with pytest.raises(UserError, match=sentence):
        takes_ground_truth(function, options, "m:f", "p")


def test_an_option_may_have_the_name_of_an_argument_that_is_not_given() -> None:
    options = {"ground_truth": "42"}
    assert not takes_ground_truth(lambda prompt, response, ground_truth: 1.0, options, "m:f", "p")
