"""What generators share is drawn again from equal seeds, and runs out by name."""

import random

import pytest

from rlcore.data.task_sampling import Generator
from schemas.errors import UserError


def _draw(rng: random.Random, kind: str, subset: str) -> tuple[int, str] | None:
    number = rng.randrange(6 if kind == "few" else 1000)
    return (number, f"{subset} {number} {rng.randrange(3)}") if number % 2 else None


GENERATOR = Generator("odd", lambda subset: ["few", "many"], _draw, lambda task: task)


def test_prompts_are_distinct_tasks_and_a_kind_that_runs_out_is_made_up_for() -> None:
    made = list(GENERATOR.prompts(3, {"train": 40, "test": 5}))
    assert made == list(GENERATOR.prompts(3, {"train": 40, "test": 5}))
    assert len({example.task for example in made if example.subset == "train"}) == 40
    assert not any(example.response for example in made)


def test_demonstrations_are_distinct_questions_with_their_response() -> None:
    made = list(GENERATOR.demonstrations(3, 300, lambda task, rng: str(task)))
    questions = [example.question for example in made]
    assert len(set(questions)) == len(questions) == 556
    assert all(example.response == str(example.task) for example in made)


def test_too_few_tasks_are_refused_by_name() -> None:
    said = r"of kind odd has test = 600, and only 500 distinct ones of .test. exist; lower test"
    with pytest.raises(UserError, match=said):
        list(GENERATOR.prompts(0, {"test": 600}))
