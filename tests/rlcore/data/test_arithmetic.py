"""The generated task teaches and tests what it says it does."""

import random
import re
from collections import Counter

import pytest
from pydantic import ValidationError

from rlcore.data.arithmetic import (
    KINDS,
    TEMPLATES,
    Problem,
    calculate,
    demonstrate,
    is_held_out,
    kinds_of,
)
from rlcore.data.generators import SUMS, DrawnExample
from schemas.data import ArithmeticSource

SOURCE = ArithmeticSource(train=600, validation=100, test=200, test_steps=100, demonstrations=3000)
STEP = re.compile(r"(\d\d)([-+*])(\d\d):(\d\d),(\d)=(\d\d)")


def generate(
    source: ArithmeticSource, seed: int
) -> tuple[list[DrawnExample[Problem]], list[DrawnExample[Problem]]]:
    """Return prompts and demonstrations."""
    made = list(SUMS.examples(source, seed))
    return [e for e in made if not e.response], [e for e in made if e.response]


@pytest.fixture(scope="module")
def generated():
    return generate(SOURCE, seed=3)


def solve(problem: Problem) -> str:
    clean = ArithmeticSource(stop_early=0, wrong_operation=0, off_result=0, malformed=0)
    return demonstrate(problem, clean, random.Random(0))


def _steps(response: str) -> list[tuple[int, str, int]]:
    return [(int(m[1]), m[2], int(m[3])) for m in STEP.finditer(response)]


def test_a_solution_writes_units_first_then_tens_then_the_result() -> None:
    assert solve(Problem("addsub", (78, 13, 50))) == "78+13:11,9=91\n91-50:01,4=41\n#### 41"
    assert solve(Problem("mulsub", (18, 5, 83))) == "18*05:40,9=90\n90-83:17,0=07\n#### 7"


def test_three_steps_are_written_and_split_like_two() -> None:
    source = SOURCE.model_copy(update={"steps": (3, 3), "demonstrations": 400})
    prompts, demonstrations = generate(source, seed=3)
    assert {e.task.kind for e in prompts} == {k for k, o in KINDS.items() if len(o) == 3}
    for example in prompts:
        held = [is_held_out(*step) for step in example.task.steps]
        assert any(held) == (example.subset == "test_steps"), example
    assert not [s for e in demonstrations for s in _steps(e.response) if is_held_out(*s)]
    lines = Counter(e.response.count("\n") for e in demonstrations)
    assert set(lines) == {1, 3}, "stops after step 1, or goes to the end"
    assert solve(Problem("mulsubadd", (18, 5, 83, 20))).endswith("\n07+20:07,2=27\n#### 27")


def test_steps_out_of_range_are_refused_with_a_remedy() -> None:
    with pytest.raises(
        ValidationError, match=r"steps = \[2, 4\] is not a range within 1 to 3; give"
    ):
        ArithmeticSource(steps=(2, 4))


def test_splits_share_no_operand_tuple(generated) -> None:
    """A test problem seen in training would make every accuracy of the run too high."""
    prompts, demonstrations = generated
    keys = {subset: set() for subset in ("train", "validation", "test", "test_steps")}
    for example in [*prompts, *demonstrations]:
        keys[example.subset].add(example.task.key)
    names = list(keys)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert not keys[one] & keys[other], f"{one} and {other} share operand tuples"
    assert Problem("add", (20, 31)).key == Problem("add", (31, 20)).key


def test_held_out_steps_occur_in_test_steps_only(generated) -> None:
    """Wrong demonstrations write steps of their own: these must not be held-out ones either."""
    prompts, demonstrations = generated
    for example in prompts:
        held = [is_held_out(*step) for step in example.task.steps]
        assert any(held) == (example.subset == "test_steps"), example
    written = [step for e in demonstrations for step in _steps(e.response)]
    assert len(written) > len(demonstrations)
    assert not [step for step in written if is_held_out(*step)]


def test_about_a_tenth_of_the_steps_is_held_out() -> None:
    steps = [(a, op, b) for a in range(10, 100) for b in range(10, 100) for op in "+-"]
    inside = [step for step in steps if 1 <= calculate(*step) <= 99]
    assert 0.08 < sum(is_held_out(*step) for step in inside) / len(inside) < 0.12


def test_every_number_is_in_range(generated) -> None:
    """The format has two digits for each."""
    for example in [*generated[0], *generated[1]]:
        values = [calculate(*step) for step in example.task.steps]
        assert all(1 <= value <= 99 for value in values), example
        assert example.task.answer == values[-1]
    for example in generated[1]:
        lines = example.response.split("\n")
        assert all(STEP.fullmatch(line) for line in lines[:-1]), example.response


def test_errors_come_at_their_rates() -> None:
    """Where demonstrations are all clean, SFT leaves nothing for RL to correct."""
    base = {"stop_early": 0, "wrong_operation": 0, "off_result": 0, "malformed": 0}
    problem = Problem("mulsub", (31, 2, 30))

    def responses(**rates: float) -> list[str]:
        source, rng = ArithmeticSource(**{**base, **rates}), random.Random(0)
        return [demonstrate(problem, source, rng) for _ in range(400)]

    assert set(responses()) == {"31*02:02,6=62\n62-30:02,3=32\n#### 32"}
    assert set(responses(stop_early=1)) == {"31*02:02,6=62\n#### 62"}
    share = Counter(r.count("\n") for r in responses(stop_early=0.6))[1] / 400
    assert 0.53 < share < 0.67
    for response in responses(wrong_operation=1):
        wrong = [op for (_, op, _), op_right in zip(_steps(response), "*-", strict=True)
                 if op != op_right]  # fmt: skip
        assert len(wrong) == 1, response
        assert int(response.rsplit(" ", 1)[1]) == calculate(*_steps(response)[-1]), response
    right = problem.answer
    off = {int(r.rsplit(" ", 1)[1]) - right for r in responses(off_result=1)}
    assert off == {-20, -10, -4, -2, -1, 1, 2, 4, 10, 20} & off
    assert off
    assert not [r for r in responses(malformed=1) if re.search(r"(^|\n)#### \d{1,4}$", r)]


def test_same_seed_same_problems_other_seed_others(generated) -> None:
    assert generate(SOURCE, seed=3) == generated
    assert generate(SOURCE, seed=4)[1] != generated[1]


def test_kinds_come_evenly_and_questions_once(generated) -> None:
    prompts, demonstrations = generated
    counts = Counter(example.task.kind for example in demonstrations)
    assert set(counts) == set(kinds_of(SOURCE.steps)) == {k for k, o in KINDS.items() if len(o) < 3}
    assert min(counts.values()) > 0.12 * len(demonstrations)
    questions = [example.question for example in demonstrations]
    assert len(set(questions)) == len([e for e in demonstrations if e.subset == "train"]) + len(
        {e.question for e in demonstrations if e.subset == "validation"}
    )
    assert len({example.question for example in prompts}) == len(prompts)


def test_questions_stay_short_enough_to_be_compared_whole() -> None:
    """From 13 words on, decontamination looks for shared word runs, which templates always have."""
    for template in (t for templates in TEMPLATES.values() for t in templates):
        assert len(template.split()) <= 12, template
