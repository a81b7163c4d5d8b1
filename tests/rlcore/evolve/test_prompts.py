"""What the agents are shown, and what they are not."""

import json
from typing import Any

import polars as pl
import pytest

from rlcore.evolve.prompts import (
    AgentPrompts,
    Entry,
    check_templates,
    problems_of,
    scored_text,
    with_templates,
)
from rlcore.evolve.rounds import play_round, remembered
from rlcore.models.tokenizer import EOS
from schemas.errors import UserError
from schemas.evolve import EvolveSection
from tests.rlcore.evolve.scripted import (
    CANARY,
    TOKENIZER,
    Engines,
    Words,
    agents,
    problem,
    section,
)


def prompts_table(**fields: Any) -> pl.DataFrame:
    row = {
        "uid": "a",
        "split": "test",
        "subset": "test",
        "data_source": "test",
        "prompt": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2 and 3?"},
        ],
        "prompt_ids": [1],
        "ability": "math",
        "reward_style": "rule",
        "ground_truth": CANARY,
        "extra_info": json.dumps({"answer": CANARY, "solution": [CANARY], "seed": 5}),
    }
    return pl.DataFrame([{**row, **fields}])


def test_no_ground_truth_is_in_a_prompt_of_either_agent_or_goes_to_an_environment() -> None:
    """With the texts of the project, in three rounds with memory and reports."""
    chosen = section(policy_prompt=None, verifier_prompt=None)
    words: Words = {
        ("policy", number, "a", 0): f"{number} <answer>{number}</answer>" for number in (1, 2, 3)
    }
    engines = Engines(words, other=r"checked \boxed{1}")
    problems = problems_of(prompts_table())
    assert CANARY not in json.dumps(problems)
    assert problems[0]["extra_info"] == json.dumps({"seed": 5}), "an environment begins by it"
    asked, done = agents(engines, chosen), []
    for number in (1, 2, 3):
        done.append(play_round(number, problems, remembered(done), asked))
    texts = [text for text, _ in engines.asked]
    assert len(texts) == 3 * (1 + 3)
    assert not any(CANARY in text for text in texts)
    assert "Attempt of round 2, accepted:" in done[2].answers["prompt"].item()
    assert "checked" in done[2].answers["prompt"].item()
    assert "Be brief." in done[2].answers["prompt"].item(), "what stands before the problem stays"


def test_words_of_a_model_open_no_turn_and_are_cut_at_their_beginning() -> None:
    shown = AgentPrompts(section(summary_tokens=4), TOKENIZER, 2000)
    entry = Entry(1, f"2 2 2 2 2 2 2{EOS} 9", f"{EOS}{EOS}", 1, 3)
    row, _ = shown.policy(problem("a", "x"), [entry], 2)
    text = row["prompt"][-1]["content"]
    assert EOS not in text
    assert "9" in text
    assert "2 2 2 2 2" not in text
    judged = shown.verifier(problem("a", "x"), solution=f"4{EOS}<answer>4</answer>", answer="4")
    assert EOS not in judged["prompt"][0]["content"]


def test_what_does_not_fit_is_left_out_from_the_worst_on() -> None:
    row = problem("a", "2 and 3?")
    entries = [Entry(n, "How many eggs now? " * 5, "fine", 1, 3) for n in (3, 2, 1)]
    roomy = AgentPrompts(section(), TOKENIZER, 2000)
    whole, shown = roomy.policy(row, entries, 4)
    assert shown == entries
    tight = AgentPrompts(section(), TOKENIZER, 60 + len(whole["prompt_ids"]) - 1)
    less, shown = tight.policy(row, entries, 4)
    assert shown == entries[:2]
    assert len(less["prompt_ids"]) < len(whole["prompt_ids"])
    solution = "so " * 100 + "<answer>5</answer>"
    room = len(tight.verifier(row, solution="?", answer="?")["prompt_ids"]) + 20
    judged = AgentPrompts(section(), TOKENIZER, 60 + room).verifier(
        row, solution=solution, answer="5"
    )
    assert len(judged["prompt_ids"]) <= room
    assert judged["prompt"][0]["content"].endswith("so <answer>5</answer>"), "its end is kept"


def test_a_problem_without_room_is_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match=r"problem 'a' is \d+ tokens in evolve.policy_prompt, and"):
        AgentPrompts(section(), TOKENIZER, 62).check([problem("a", "2 and 3?")])
    long = section(verifier_prompt="Judge " * 40 + "{{ problem }}")
    with pytest.raises(UserError, match=r"evolve.verifier_prompt.*lower evolve.max_new_tokens"):
        AgentPrompts(long, TOKENIZER, 90).check([problem("a", "2 and 3?")])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"policy_prompt": "{{ problem"}, "evolve.policy_prompt is no template of problem, memory"),
        ({"policy_prompt": "{{ ground_truth }}"}, "'ground_truth' is undefined"),
        ({"verifier_prompt": "{{ memory }}"}, "evolve.verifier_prompt is no template of problem"),
        ({"verifier_prompt": " "}, "renders to nothing"),
        ({"scored_as": "{{ x.y }}"}, "evolve.scored_as is no template of answer"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(fields: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_templates(section(**fields))


def test_the_projects_own_templates_hold() -> None:
    check_templates(EvolveSection())
    filled = with_templates(EvolveSection())
    assert "{{ problem }}" in (filled.policy_prompt or "")
    assert "boxed" in (filled.verifier_prompt or "")
    assert with_templates(section()) == section()


def test_reward_functions_read_the_answer_in_the_form_that_is_set() -> None:
    assert scored_text(section(), "42") == "#### 42"
    assert scored_text(section(scored_as="\\boxed{{ '{' }}{{ answer }}}"), "4") == "\\boxed{4}"
    assert scored_text(section(answer="text"), "so\n#### 42") == "so\n#### 42"
