"""The generated programming task teaches and tests what it says it does."""

import json
import random
from collections import Counter

import pytest

from rlcore.data.dedup import words_of
from rlcore.data.generators import TINY_PROGRAMS, DrawnExample, generated_rows
from rlcore.data.programs import (
    KINDS,
    Program,
    calculate,
    demonstrate,
)
from rlcore.data.rows import Row
from rlcore.rewards import code
from rlcore.rewards.code import last_program
from rlcore.rewards.types import Reward, RewardRow
from schemas.data import ProgramsSource
from schemas.errors import UserError

SOURCE = ProgramsSource(train=600, validation=100, test=200, demonstrations=2000)
CLEAN = dict.fromkeys(
    ("forgotten_step", "no_parentheses", "wrong_operation", "wrong_number", "malformed"), 0.0
)
BEFORE, AFTER = "```python\nprint(", ")\n```"


def generate(
    source: ProgramsSource, seed: int
) -> tuple[list[DrawnExample[Program]], list[DrawnExample[Program]]]:
    """Return prompts and demonstrations."""
    made = list(TINY_PROGRAMS.examples(source, seed))
    return [e for e in made if not e.response], [e for e in made if e.response]


@pytest.fixture(scope="module")
def generated():
    return generate(SOURCE, seed=3)


def solve(program: Program) -> str:
    return demonstrate(program, ProgramsSource(**CLEAN), random.Random(0))


def said(response: str, number: int) -> str | None:
    """Return what the block of ``response``, of our own generator, prints; None without one."""
    program = last_program(response)
    if program is None:
        return None
    printed: list[str] = []
    exec(program, {"input": lambda: f"{number}", "print": lambda value: printed.append(f"{value}")})
    return "".join(printed)


def program_of(row: Row) -> Program:
    return Program(tuple((op, right) for op, right in json.loads(row.extra_info)["steps"]))


def test_a_solution_is_one_line_that_applies_the_steps_in_their_order() -> None:
    assert solve(Program((("+", 17), ("*", 3)))) == f"{BEFORE}(int(input())+17)*3{AFTER}"
    assert solve(Program((("*", 3), ("+", 17)))) == f"{BEFORE}int(input())*3+17{AFTER}"
    assert solve(Program((("/", 7), ("-", 5)))) == f"{BEFORE}int(input())//7-5{AFTER}"


def test_the_expression_of_any_steps_computes_what_the_steps_do() -> None:
    """Also that of steps which only wrong demonstrations have."""
    numbers = {"+": 13, "-": 29, "*": 6, "/": 4, "%": 11}
    for kind in [*KINDS, "+/", "*%", "/*", "%/", "*+%"]:
        program = Program(tuple((op, numbers[op]) for op in kind))
        for number in (1000, 5077, 9999):
            assert said(solve(program), number) == str(program.output(number)), kind


def test_each_split_has_its_rows_with_tests_in_the_form_of_the_reward() -> None:
    source = ProgramsSource(train=20, validation=8, test=9, demonstrations=30, tests=3)
    rows = list(generated_rows(source, seed=0))
    prompts = Counter((row.split, row.subset) for row in rows if row.scored)
    assert prompts == {("train", "train"): 20, ("validation", "validation"): 8, ("test", "test"): 9}
    demonstrations = Counter(row.split for row in rows if row.solution)
    assert demonstrations == {"train": 30, "validation": 30}
    assert [row.index for row in rows] == list(range(len(rows)))
    assert not [row for row in rows if row.scored == bool(row.solution)]
    for row in (row for row in rows if row.scored):
        cases = code.cases_of(row.ground_truth)
        assert (row.reward_style, len(set(cases.inputs)), cases.function) == ("code", 3, None)


def test_what_a_held_out_program_computes_is_in_no_demonstration(generated) -> None:
    """Not in a wrong one either, and not described in other words."""
    prompts, demonstrations = generated
    probes = range(1000, 9999, 311)

    def outputs(response: str) -> tuple[str | None, ...]:
        return tuple(said(response, number) for number in probes)

    held = {outputs(solve(e.task)) for e in prompts if e.subset != "train"}
    shown = [outputs(e.response) for e in demonstrations if e.subset == "train"]
    assert len(held) > 250
    assert not held & set(shown)
    assert not held & {outputs(solve(e.task)) for e in prompts if e.subset == "train"}
    splits = {e.question: e.subset for e in [*prompts, *demonstrations]}
    assert all(splits[e.question] == e.subset for e in [*prompts, *demonstrations])


def test_same_seed_same_tasks_other_seed_others(generated) -> None:
    assert generate(SOURCE, seed=3) == generated
    assert generate(SOURCE, seed=4)[1] != generated[1]
    other = Counter(e.subset for e in generate(SOURCE, seed=4)[0])
    assert other == Counter(e.subset for e in generated[0])


def test_errors_come_at_their_rates() -> None:
    """Where demonstrations are all clean, SFT leaves nothing for RL to correct."""

    def responses(*steps: tuple[str, int], **rates: float) -> Counter[str]:
        source = ProgramsSource.model_validate({**CLEAN, **rates})
        rng = random.Random(0)
        return Counter(demonstrate(Program(steps), source, rng) for _ in range(400))

    sum_first, product_first = (("+", 17), ("*", 3)), (("*", 3), ("+", 17))
    assert responses(*sum_first) == {solve(Program(sum_first)): 400}
    bare = responses(*sum_first, no_parentheses=1)
    assert list(bare) == [f"{BEFORE}int(input())+17*3{AFTER}"]
    assert responses(*product_first, no_parentheses=1) == {solve(Program(product_first)): 400}
    short = responses(*product_first, forgotten_step=0.6)[f"{BEFORE}int(input())*3{AFTER}"]
    assert 0.53 < short / 400 < 0.67
    half = responses(*sum_first, forgotten_step=0.6)[f"{BEFORE}int(input())+17{AFTER}"]
    assert 0.23 < half / 400 < 0.37
    for rates in ({"wrong_operation": 1.0}, {"wrong_number": 1.0}):
        wrong = responses(*sum_first, **rates)
        assert len(wrong) > 4
        assert solve(Program(sum_first)) not in wrong
    assert {said(response, 5000) for response in responses(*sum_first, malformed=1)} == {None, ""}


def test_kinds_come_evenly_and_questions_once(generated) -> None:
    prompts, demonstrations = generated
    counts = Counter(e.task.kind for e in demonstrations)
    assert set(counts) == set(KINDS)
    assert min(count for kind, count in counts.items() if len(kind) == 2) > 0.06 * 2000
    questions = [e.question for e in demonstrations]
    assert len(set(questions)) == len(questions)
    for split in ("train", "validation", "test"):
        tasks = [e.task for e in prompts if e.subset == split]
        assert len(set(tasks)) == len(tasks)


def test_questions_stay_short_enough_to_be_compared_whole(generated) -> None:
    """From 13 words on, decontamination looks for shared word runs, which templates always have."""
    assert max(len(words_of(e.question)) for e in [*generated[0], *generated[1]]) <= 12


def test_tests_fail_a_program_that_computes_something_else(generated) -> None:
    """A wrong program that is paid teaches its error."""
    paid = 0
    for example in generated[1]:
        tests = example.task.tests(2)
        printed = [said(example.response, int(given)) for given in tests["inputs"]]
        if [f"{text}\n" for text in printed] == tests["outputs"]:
            others = [said(example.response, number) for number in range(1000, 9999, 311)]
            right = [str(example.task.output(number)) for number in range(1000, 9999, 311)]
            paid += others != right
    assert paid <= 0.001 * len(generated[1]), "with two errors, both of which the inputs hide"
    halves = Program((("%", 44), ("+", 5)))  # n % 22 and n % 88 have many of its outputs
    for other in (("%", 22), ("%", 88), ("%", 11)):
        wrong, tests = Program((other, ("+", 5))), halves.tests(2)
        outputs = [f"{wrong.output(int(given))}\n" for given in tests["inputs"]]
        assert outputs != tests["outputs"]
    assert halves.tests(2) == tests


def test_more_programs_than_there_are_is_refused_with_a_remedy() -> None:
    with pytest.raises(UserError, match=r"has test = 9000, and only \d+ .* 'test' exist; lower"):
        generate(SOURCE.model_copy(update={"test": 9000}), seed=0)


@pytest.mark.slow
def test_the_reward_pays_right_demonstrations_and_no_others() -> None:
    """Written otherwise than the reward reads it, no program would ever earn anything."""
    score = code.scorer(memory_mib=256)
    source = ProgramsSource(train=1, validation=1, test=1, demonstrations=24)
    paid: dict[bool, list[Reward]] = {True: [], False: []}
    for row in generated_rows(source, seed=1):
        for response in [row.solution[0]["content"]] if row.solution else []:
            program = program_of(row)
            truth = json.dumps(program.tests(2))
            reward = score(RewardRow("t", row.data_source, response, truth, {}, "stop", 9))
            paid[response == solve(program)].append(reward)
    assert len(paid[True]) > 10 < len(paid[False])
    assert all(reward.correct and reward.score == 1 for reward in paid[True])
    assert not [reward for reward in paid[False] if reward.correct or reward.score]


def test_a_quotient_is_rounded_down() -> None:
    assert [calculate(n, "/", 7) for n in (13, 14, -1)] == [1, 2, -1]
