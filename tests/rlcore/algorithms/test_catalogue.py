"""The catalogue agrees with what the algorithms do; its advice is that of StateSet's guide."""

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
    assert (row.critic, row.group, row.kl, row.filtering, row.gamma) == (
        *(critic, group, kl, filtering, gamma),
    )


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
    assert recommend(scenario).presets == presets


def test_only_reasoning_forks_on_the_state_of_the_art() -> None:
    assert recommend("reasoning", sota=True).presets == ("vapo",)
    assert recommend("dialogue", sota=True) == recommend("dialogue")


@pytest.mark.parametrize(
    ("said", "scenario"),
    [
        *((said, "code generation") for said in ("code", "Code", "generation", "code-generation")),
        *((said, "code generation") for said in ("programming", "coding")),
        *((said, "math problem solving") for said in ("math", "mathematics", "problem solving")),
        ("chat", "customer service chatbot"),
        ("reasoning", "reasoning"),  # and not "production reasoning"
        ("distributed", "distributed"),
        *((said, "agentic tasks") for said in ("agentic", "tools", "agents")),
        *((said, "without a critic") for said in ("critic", "no critic")),
        *((said, "trained reward model") for said in ("reward model", "reward")),
        ("GPU memory", "little gpu memory"),
    ],
)
def test_a_scenario_is_found_by_its_words(said: str, scenario: str) -> None:
    assert recommend(said).scenario == scenario


@pytest.mark.parametrize("said", ["", " ", "code math", "training code"])
def test_words_of_no_one_scenario_name_none(said: str) -> None:
    with pytest.raises(UserError, match=f"scenario '{said}' is not one of customer service"):
        recommend(said)


@pytest.mark.parametrize("said", ["code", "code generation", "programming"])
def test_the_command_answers_for_code(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "--for", said]) == 0
    assert "code generation: dapo" in capsys.readouterr().out
    assert main(["algorithms", "--for", said, "--format", "csv"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()][1:] == ["dapo"]


def test_unknown_scenario_and_algorithm_name_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'code generation'"):
        recommend("code genration")
    with pytest.raises(UserError, match="did you mean 'grpo'"):
        capabilities("grppo")


def test_the_command_prints_table_and_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms"]) == 0
    table = capsys.readouterr().out
    assert all(f"\n{name} " in table for name in PRESETS)
    assert main(["algorithms", "--for", "reasoning"]) == 0
    answer = capsys.readouterr().out
    assert "reasoning: dapo" in answer
    assert "reasoning, sota: vapo" in answer
    assert main(["algorithms", "--for", "reasonning"]) == 2
