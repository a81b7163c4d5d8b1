"""The section ``evolve`` refuses what cannot be meant, in a sentence."""

from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.evolve import EvolveSection


def test_an_even_number_of_verifiers_is_refused_with_both_neighbours() -> None:
    with pytest.raises(UserError) as refused:
        load_recipe("quickstart", {"evolve.verifiers": 4}, directory=RECIPES)
    sentence = str(refused.value)
    assert "evolve" in sentence
    assert "verifiers = 4 is even, so a vote could be a tie; use 3 or 5" in sentence


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("rounds", 0, "rounds"),
        ("verifiers", -1, "verifiers"),
        ("memory", -1, "memory"),
        ("max_turns", 0, "max_turns"),
        ("format_retries", 6, "format_retries"),
        ("temperature", 0, "temperature"),
        ("verifier_temperature", 9, "verifier_temperature"),
        ("answer", "box", "answer"),
        ("verifer_prompt", "x", "verifier_prompt"),
    ],
)
def test_other_values_are_refused_with_their_key(path: str, value: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_recipe("quickstart", {f"evolve.{path}": value}, directory=RECIPES)


@pytest.mark.parametrize("stop", ["</answer>", "</", "</answer>\n"])
def test_what_would_cut_off_the_tag_is_refused(stop: str) -> None:
    """Each answer could not be read: an accuracy of 0, without a word."""
    with pytest.raises(ValueError, match="answer = 'tag' reads up to </answer>"):
        EvolveSection(stop=(stop,))
    assert EvolveSection(stop=(stop,), answer="text").stop == (stop,)


def test_defaults_are_those_of_the_source() -> None:
    section = EvolveSection()
    numbers = (section.rounds, section.verifiers, section.max_turns, section.memory)
    assert numbers == (10, 5, 4, 3)
    assert (section.temperature, section.verifier_temperature) == (0.7, 0.4)
    assert section.format_retries == 5


def test_more_rounds_go_on_with_those_that_there_are() -> None:
    """How many rounds there are to be is in no round's key; what a round depends on is."""
    identity = EvolveSection(rounds=3).identity
    assert identity == EvolveSection(rounds=9).identity
    assert identity != EvolveSection(memory=1).identity
