"""What generators share is drawn again from equal seeds, and runs out by name."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from rlcore.data.generators import DrawnExample, Generator
from schemas.errors import UserError


def _draw(rng: random.Random, kind: str, subset: str) -> tuple[int, str] | None:
    number = rng.randrange(6 if kind == "few" else 1000)
    return (number, f"{subset} {number} {rng.randrange(3)}") if number % 2 else None


GENERATOR = Generator(
    subsets=("train", "test"),
    kinds=lambda source, subset: ["few", "many"],
    draw=_draw,
    key=lambda task: task,
    respond=lambda task, source, rng: str(task),
)


def drawn(seed: int, **sizes: int) -> list[DrawnExample[int]]:
    source: Any = SimpleNamespace(**({"train": 40, "test": 5, "demonstrations": 300} | sizes))
    source.kind = "odd"
    return list(GENERATOR.examples(source, seed))


def test_prompts_are_distinct_tasks_and_a_kind_that_runs_out_is_made_up_for() -> None:
    made = drawn(3)
    assert made == drawn(3)
    prompts = [example for example in made if not example.response]
    assert len({example.task for example in prompts if example.subset == "train"}) == 40


def test_demonstrations_are_distinct_questions_with_their_response() -> None:
    made = [example for example in drawn(3) if example.response]
    questions = [example.question for example in made]
    assert len(set(questions)) == len(questions) == 556
    assert all(example.response == str(example.task) for example in made)


def test_too_few_tasks_are_refused_by_name() -> None:
    said = r"of kind odd has test = 600, and only 500 distinct ones of .test. exist; lower test"
    with pytest.raises(UserError, match=said):
        drawn(0, test=600)
