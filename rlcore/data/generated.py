"""The rows of the arithmetic generator."""

import json

from rlcore.data.arithmetic import Example, generate
from rlcore.data.rows import Row
from schemas.data import ArithmeticSource

ARITHMETIC = "arithmetic"


def arithmetic_rows(source: ArithmeticSource, seed: int) -> list[Row]:
    """Return prompts of all splits, then demonstrations, as normalised rows.

    ``test`` and ``test_steps`` are subsets of split "test". ``ground_truth`` is the answer in
    decimal; ``extra_info`` holds kind and numbers.
    """
    prompts, demonstrations = generate(source, seed)
    return [_row(i, example) for i, example in enumerate([*prompts, *demonstrations])]


def _row(index: int, example: Example) -> Row:
    problem = example.problem
    solution = [{"role": "assistant", "content": example.response}] if example.response else []
    return Row(
        source=ARITHMETIC,
        index=index,
        split="test" if example.subset.startswith("test") else example.subset,
        subset=example.subset,
        data_source=ARITHMETIC,
        prompt=[{"role": "user", "content": example.question}],
        solution=solution,
        scored=not solution,
        ability="math",
        ground_truth=str(problem.answer),
        extra_info=json.dumps({"kind": problem.kind, "numbers": problem.numbers}),
    )
