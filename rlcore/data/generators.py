"""The rows of the generators, among them instructions that a rule can check.

Test and validation prompts ask for words that no training prompt asks for. A model of 100 M
parameters that follows instructions now and then has a foothold in them without any SFT.
"""

import json
import random
from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any

from rlcore.algorithms.seeds import stream_seed
from rlcore.data import arithmetic, programs
from rlcore.data.rows import Row
from rlcore.data.task_sampling import DrawnExample
from rlcore.envs.process import EnvironmentProcess
from rlcore.envs.types import Call
from rlcore.models.chat import Message
from schemas.data import (
    ENVIRONMENT,
    ArithmeticSource,
    EnvironmentSource,
    GeneratedSource,
    InstructionsSource,
    ProgramsSource,
)
from schemas.environment import EnvironmentSection
from schemas.errors import UserError

# Common words that go together in a sentence in any pair.
WORDS = (
    *("river", "stone", "bridge", "garden", "window", "paper", "winter", "summer", "morning"),
    *("evening", "forest", "mountain", "village", "market", "kitchen", "table", "bread", "apple"),
    *("horse", "bird", "fish", "cloud", "rain", "storm", "light", "shadow", "music", "letter"),
    *("friend", "child", "teacher", "doctor", "farmer", "sailor", "train", "boat", "road"),
    *("island", "silver", "golden", "quiet", "bright", "heavy", "gentle", "small", "old", "warm"),
    *("cold", "happy", "green", "blue", "empty", "clean", "tall", "slowly", "together", "again"),
    *("always", "coffee", "sugar", "honey", "candle", "clock", "mirror", "basket", "ladder"),
    *("hammer", "rope", "school", "church", "castle", "harbor", "valley", "desert", "field"),
    *("beach", "city", "street"),
)
SHARES = {"test": 4, "validation": 8}  # one word of so many is of that split alone
LENGTHS = tuple((low, low + 4) for low in range(5, 10))
PHRASES = (
    'Write one sentence of {low} to {high} words with the words "{first}" and "{second}".',
    'Use the words "{first}" and "{second}" in one sentence of {low} to {high} words.',
    'Write a sentence with "{first}" and "{second}" in it. It has {low} to {high} words.',
)
# Two words, and the fewest and most words of a sentence.
Asked = tuple[tuple[str, str], tuple[int, int]]


def words_of(subset: str) -> tuple[str, ...]:
    """Return the words that the prompts of "train", "validation" or "test" ask for."""
    test, validation = SHARES["test"], SHARES["validation"]
    chosen = {
        "test": range(0, len(WORDS), test),
        "validation": range(1, len(WORDS), validation),
    }
    taken = {*chosen["test"], *chosen["validation"]}
    indices = chosen.get(subset, [i for i in range(len(WORDS)) if i not in taken])
    return tuple(WORDS[i] for i in indices)


def prompts(source: InstructionsSource, seed: int) -> Iterator[DrawnExample[Asked]]:
    """Yield the prompts of all subsets, distinct ones, a pure function of ``source`` and ``seed``.

    Raises UserError when a subset has too few.
    """
    sizes = {"train": source.train, "validation": source.validation, "test": source.test}
    for subset, size in sizes.items():
        asked = [
            (pair, length, phrase)
            for pair in combinations(words_of(subset), 2)
            for length in LENGTHS
            for phrase in PHRASES
        ]
        if size > len(asked):
            raise UserError(
                f"{subset} = {size} of a source of kind instructions is more than the"
                f" {len(asked)} prompts that there are; lower it"
            )
        rng = random.Random(stream_seed(seed, "instructions", subset))
        for pair, length, phrase in rng.sample(asked, size):
            (first, second), (low, high) = pair, length
            question = phrase.format(first=first, second=second, low=low, high=high)
            yield DrawnExample((pair, length), subset, question)


def keeps(asked: Asked) -> dict[str, object]:
    """Return what a response is to keep, in the form of the reward ``instructions``."""
    words, length = asked
    return {"words": list(words), "length": list(length), "sentences": 1}


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
            for index, example in enumerate(prompts(source, seed)):
                truth = json.dumps(keeps(example.task))
                yield _row(source, index, example, "instructions", truth, {})


def _row(
    source: GeneratedSource,
    index: int,
    example: DrawnExample,
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
