"""The rows of the generators."""

import json
from collections.abc import Iterator
from itertools import chain, count

from rlcore.data import arithmetic, instructions, programs
from rlcore.data.chat import Message
from rlcore.data.rows import Row
from rlcore.envs.process import EnvironmentProcess
from rlcore.envs.types import Call
from rlcore.seeds import stream_seed
from schemas.environment import EnvironmentSection
from schemas.errors import UserError
from schemas.generated import (
    ARITHMETIC,
    ENVIRONMENT,
    INSTRUCTIONS,
    PROGRAMS,
    ArithmeticSource,
    EnvironmentSource,
    GeneratedSource,
    InstructionsSource,
    ProgramsSource,
)


def generated_rows(
    source: GeneratedSource, seed: int, environment: EnvironmentSection | None = None
) -> Iterator[Row]:
    """Yield prompts of all splits, then demonstrations, as normalised rows, as they are needed.

    ``environment`` makes those of the kind of its name. Raises ``UserError`` as
    ``environment_rows`` and the generators do.
    """
    if isinstance(source, EnvironmentSource):
        assert environment is not None, "a rule of the recipe"
        return iter(environment_rows(source, environment, seed))
    if isinstance(source, ProgramsSource):
        return programs_rows(source, seed)
    if isinstance(source, InstructionsSource):
        return map(_instruction, count(), instructions.prompts(source, seed))
    return arithmetic_rows(source, seed)


def arithmetic_rows(source: ArithmeticSource, seed: int) -> Iterator[Row]:
    """Yield prompts of all splits, then demonstrations, as normalised rows.

    ``test`` and ``test_steps`` are subsets of split "test". ``ground_truth`` is the answer in
    decimal; ``extra_info`` holds kind and numbers.
    """
    examples = chain(arithmetic.prompts(source, seed), arithmetic.demonstrations(source, seed))
    return (_arithmetic(index, example) for index, example in enumerate(examples))


def programs_rows(source: ProgramsSource, seed: int) -> Iterator[Row]:
    """Yield prompts of all splits, then demonstrations, as normalised rows.

    ``ground_truth`` of a prompt holds tests in the form of the reward ``code``; ``extra_info`` the
    steps.
    """
    examples = chain(programs.prompts(source, seed), programs.demonstrations(source, seed))
    return (_program(index, example, source.tests) for index, example in enumerate(examples))


def environment_rows(
    source: EnvironmentSource, environment: EnvironmentSection, seed: int
) -> list[Row]:
    """Return prompts of all splits, then demonstrations, as normalised rows.

    A prompt is what ``reset`` begins with for the seed in its ``extra_info``; an episode of it gets
    that seed again. Raises UserError where ``reset`` makes no prompt or fails.
    """
    sizes = {
        "train": source.train_size,
        "validation": source.validation_size,
        "test": source.test_size,
    }
    name = source.data_source or environment.name
    process = EnvironmentProcess(environment)
    try:
        rows: list[Row] = []
        for split, size in sizes.items():
            seeds = [stream_seed(seed, ENVIRONMENT, split, number) for number in range(size)]
            rows += _begun(process, seeds, split, name, first=len(rows))
        seeds = [
            stream_seed(seed, ENVIRONMENT, "demonstration", number)
            for number in range(source.demonstrations)
        ]
        for index, messages in enumerate(process.demonstrations(seeds), len(rows)):
            rows.append(_demonstration(index, messages, name))
        return rows
    finally:
        process.close()


def _begun(
    process: EnvironmentProcess, seeds: list[int], split: str, name: str, *, first: int
) -> list[Row]:
    calls = [
        Call(str(number), row={"data_source": name, "seed": seed}, seed=seed)
        for number, seed in enumerate(seeds)
    ]
    answers = {answer.episode: answer for answer in process.exchange(calls, len(calls))}
    process.end([call.episode for call in calls])
    rows = []
    for index, call in enumerate(calls):
        answer = answers[call.episode]
        if answer.start is None or not answer.start.messages:
            why = f"fails ({answer.failure})" if answer.failure else "returns no messages"
            raise UserError(
                f"data.sources: kind environment takes its prompts from reset(), which {why};"
                " return the prompt's messages, or use a source that has prompts"
            )
        truth = answer.start.ground_truth
        rows.append(
            Row(
                source=ENVIRONMENT,
                index=first + index,
                split=split,
                subset=split,
                data_source=name,
                prompt=[dict(message) for message in answer.start.messages],
                ability=ENVIRONMENT,
                reward_style="rule" if truth is not None else "model",
                ground_truth=truth,
                extra_info=json.dumps({"seed": call.seed}),
            )
        )
    return rows


def _demonstration(index: int, messages: list[Message], name: str) -> Row:
    spoken = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not spoken or spoken[-1] != len(messages) - 1:
        raise UserError(
            "data.sources: demonstration() of the environment must end with a turn of the"
            " assistant, which is what is learnt"
        )
    return Row(
        source=ENVIRONMENT,
        index=index,
        split="train",
        subset="train",
        data_source=name,
        prompt=messages[: spoken[0]],
        solution=messages[spoken[0] :],
        scored=False,
        ability=ENVIRONMENT,
    )


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


def _instruction(index: int, example: instructions.Instruction) -> Row:
    return Row(
        source=INSTRUCTIONS,
        index=index,
        split=example.subset,
        subset=example.subset,
        data_source=INSTRUCTIONS,
        prompt=[{"role": "user", "content": example.question}],
        solution=[],
        scored=True,
        ability="instructions",
        ground_truth=json.dumps(example.keeps),
        extra_info="{}",
    )


def _solution(response: str) -> list[Message]:
    return [{"role": "assistant", "content": response}] if response else []
