"""The rows of the generators."""

import json

from rlcore.data import arithmetic, programs
from rlcore.data.chat import Message
from rlcore.data.rows import Row
from schemas.data import ARITHMETIC, PROGRAMS, ArithmeticSource, GeneratedSource, ProgramsSource


def generated_rows(source: GeneratedSource, seed: int) -> list[Row]:
    """Return prompts of all splits, then demonstrations, as normalised rows."""
    if isinstance(source, ProgramsSource):
        return programs_rows(source, seed)
    return arithmetic_rows(source, seed)


def arithmetic_rows(source: ArithmeticSource, seed: int) -> list[Row]:
    """Return prompts of all splits, then demonstrations, as normalised rows.

    ``test`` and ``test_steps`` are subsets of split "test". ``ground_truth`` is the answer in
    decimal; ``extra_info`` holds kind and numbers.
    """
    prompts, demonstrations = arithmetic.generate(source, seed)
    return [_arithmetic(i, example) for i, example in enumerate([*prompts, *demonstrations])]


def programs_rows(source: ProgramsSource, seed: int) -> list[Row]:
    """Return prompts of all splits, then demonstrations, as normalised rows.

    ``ground_truth`` of a prompt holds tests in the form of the reward ``code``; ``extra_info`` the
    steps.
    """
    prompts, demonstrations = programs.generate(source, seed)
    return [
        _program(i, example, source.tests) for i, example in enumerate([*prompts, *demonstrations])
    ]


def _arithmetic(index: int, example: arithmetic.Example) -> Row:
    problem = example.problem
    return Row(
        source=ARITHMETIC,
        index=index,
        split="test" if example.subset.startswith("test") else example.subset,
        subset=example.subset,
        data_source=ARITHMETIC,
        prompt=[{"role": "user", "content": example.question}],
        solution=_solution(example.response),
        scored=not example.response,
        ability="math",
        ground_truth=str(problem.answer),
        extra_info=json.dumps({"kind": problem.kind, "numbers": problem.numbers}),
    )


def _program(index: int, example: programs.Example, tests: int) -> Row:
    program = example.program
    return Row(
        source=PROGRAMS,
        index=index,
        split=example.subset,
        subset=example.subset,
        data_source=PROGRAMS,
        prompt=[{"role": "user", "content": example.question}],
        solution=_solution(example.response),
        scored=not example.response,
        ability="code",
        reward_style="code",
        ground_truth=None if example.response else json.dumps(program.tests(tests)),
        extra_info=json.dumps({"kind": program.kind, "steps": program.steps}),
    )


def _solution(response: str) -> list[Message]:
    return [{"role": "assistant", "content": response}] if response else []
