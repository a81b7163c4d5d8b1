"""The catalogue agrees with what the algorithms do; its advice is that of StateSet's guide."""

import csv
import io

import pytest

from flows.cli import main
from rlcore.algorithms.catalogue import SOURCES, capabilities, recommend
from schemas.errors import UserError
from schemas.presets import PRESETS


def test_every_preset_has_its_source() -> None:
    assert set(SOURCES) == set(PRESETS)


@pytest.mark.parametrize(
    ("name", "critic", "group", "kl", "filtering", "gamma"),
    [
        ("ppo", True, False, "reward", False, True),
        ("ppo-instructgpt", True, False, "reward", False, True),
        ("grpo", False, True, "loss", False, False),
        ("rloo", False, True, "none", False, False),
        ("remax", False, False, "none", False, False),
        ("dapo", False, True, "none", True, False),
        ("gspo", False, True, "none", False, False),
        ("gepo", False, True, "none", False, False),
        ("vapo", True, False, "none", False, True),
    ],
)
def test_capabilities_are_those_of_alphaapollos_table_with_our_exceptions(
    name: str, critic: bool, group: bool, kl: str, filtering: bool, gamma: bool
) -> None:
    row = capabilities(name)
    assert [row[key] for key in ("critic", "group", "kl", "filtering", "gamma")] == [
        *(critic, group, kl, filtering, gamma),
    ]


@pytest.mark.parametrize(
    ("scenario", "presets"),
    [
        ("Customer service chatbot", ("grpo", "gspo")),
        ("Math problem solving", ("vapo",)),
        ("Code generation", ("dapo",)),
        ("Distributed training", ("gepo",)),
        ("Quick prototyping", ("grpo",)),
        ("Production reasoning", ("vapo",)),
        ("Trained reward model", ("ppo",)),
        ("Sample efficiency", ("ppo",)),
        ("Without a critic", ("grpo",)),
        ("Little GPU memory", ("grpo",)),
        ("Agentic tasks", ("grpo",)),
        ("dialogue", ("grpo", "gspo")),
        ("reasoning", ("dapo",)),
        ("distributed", ("gepo",)),
    ],
)
def test_recommendations_are_the_guides(scenario: str, presets: tuple[str, ...]) -> None:
    assert recommend(scenario)[0].presets == presets


def test_only_reasoning_forks_on_the_state_of_the_art() -> None:
    assert [row.presets for row in recommend("reasoning")] == [("dapo",), ("vapo",)]
    assert len(recommend("dialogue")) == 1


def test_csv_and_json_hold_what_is_recommended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "--for", "Code-generation", "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["name"], row["source"]) == ("dapo", "arXiv 2503.14476")


def test_an_unknown_scenario_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'code generation'"):
        recommend("code genration")


def test_the_command_prints_table_and_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms"]) == 0
    assert set(PRESETS) <= set(capsys.readouterr().out.split())
    assert main(["algorithms", "--for", "reasoning"]) == 0
    answer = capsys.readouterr().out
    assert "reasoning: dapo" in answer
    assert "reasoning, sota: vapo" in answer
    assert main(["algorithms", "--for", "reasonning"]) == 2
