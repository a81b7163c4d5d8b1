"""The rows of the generators."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

from rlcore.data import arithmetic, instructions, programs
from rlcore.data.chat import Message
from rlcore.data.drawn import Example
from rlcore.data.rows import Row
from rlcore.envs.process import EnvironmentProcess
from rlcore.envs.types import Call
from rlcore.seeds import stream_seed
from schemas.environment import EnvironmentSection
from schemas.errors import UserError
from schemas.generated import (
    ENVIRONMENT,
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

    ``environment`` makes those of the kind of its name. Subset ``test_steps`` is of split "test".
    ``ground_truth`` is the answer in decimal, tests in the form of the reward ``code``, or what the
    reward ``instructions`` reads; ``extra_info`` holds what a task consists of. Raises
    ``UserError`` as ``environment_rows`` and the generators do.
    """
    match source:
        case EnvironmentSource():
            assert environment is not None, "a rule of the recipe"
            yield from environment_rows(source, environment, seed)
        case ArithmeticSource():
            sums = chain(arithmetic.prompts(source, seed), arithmetic.demonstrations(source, seed))
            for index, example in enumerate(sums):
                info = {"kind": example.task.kind, "numbers": example.task.numbers}
                yield _row(source, index, example, "math", str(example.task.answer), info)
        case ProgramsSource():
            tasks = chain(programs.prompts(source, seed), programs.demonstrations(source, seed))
            for index, example in enumerate(tasks):
                info = {"kind": example.task.kind, "steps": example.task.steps}
                tests = None if example.response else json.dumps(example.task.tests(source.tests))
                yield _row(source, index, example, "code", tests, info, reward_style="code")
        case InstructionsSource():
            for index, example in enumerate(instructions.prompts(source, seed)):
                truth = json.dumps(instructions.keeps(example.task))
                yield _row(source, index, example, "instructions", truth, {})


def _row(
    source: GeneratedSource,
    index: int,
    example: Example,
    ability: str,
    ground_truth: str | None,
    info: dict[str, Any],
    reward_style: str = "rule",
) -> Row:
    solution = [{"role": "assistant", "content": example.response}] if example.response else []
    return Row(
        source=source.kind,
        index=index,
        split=example.subset.removesuffix("_steps"),
        subset=example.subset,
        data_source=source.kind,
        prompt=[{"role": "user", "content": example.question}],
        solution=solution,
        scored=not solution,
        ability=ability,
        reward_style=reward_style,
        ground_truth=ground_truth,
        extra_info=json.dumps(info),
    )


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
