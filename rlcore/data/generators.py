"""The rows of the generators: distinct tasks of each subset, drawn from a seed, among them
instructions that a rule can check.

Test and validation prompts ask for words that no training prompt asks for. A model of 100 M
parameters that follows instructions now and then has a foothold in them without any SFT.
"""

import json
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Generic, TypeVar

from rlcore.algorithms.seeds import stream_seed
from rlcore.data import arithmetic, programs
from rlcore.data.rows import Row
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

VALIDATION_DEMONSTRATIONS = 256
_TRIES = 4000  # consecutive unusable draws after which a kind counts as exhausted

Task = TypeVar("Task", bound=Hashable)


@dataclass(frozen=True, slots=True)
class DrawnExample(Generic[Task]):
    """One question. ``response``: a demonstration, right or not; empty for a prompt."""

    task: Task
    subset: str
    question: str
    response: str = ""


@dataclass(frozen=True, slots=True)
class Generator(Generic[Task]):
    """What the tasks of a source are drawn by. ``subsets``: of its prompts. ``kinds``: those of its
    tasks of a subset. ``draw``: a task of a kind and a subset with its question, or None for a draw
    that is unusable. ``key``: of equal tasks. ``respond``: a demonstration of a task, with errors
    at the rates of the source."""

    subsets: Sequence[str]
    kinds: Callable[[Any, str], Sequence[str]]
    draw: Callable[[random.Random, str, str], tuple[Task, str] | None]
    key: Callable[[Task], Hashable]
    respond: Callable[[Task, Any, random.Random], str]

    def examples(
        self, source: ArithmeticSource | ProgramsSource, seed: int
    ) -> Iterator[DrawnExample[Task]]:
        """Yield the prompts of each subset, each of another task, then the demonstrations of
        ``train`` tasks and at most ``VALIDATION_DEMONSTRATIONS`` of ``validation`` tasks, each of
        another question: a pure function of ``source`` and ``seed``.

        Kinds are drawn evenly, and where one is exhausted the others make up for it. Raises
        ``UserError`` when a subset has too few tasks or questions.
        """
        for subset in self.subsets:
            rng = random.Random(stream_seed(seed, source.kind, subset))
            size = getattr(source, subset)
            yield from self._distinct(source, rng, subset, size, lambda e: self.key(e.task), subset)
        size = source.demonstrations
        for subset, count in (
            ("train", size),
            ("validation", min(VALIDATION_DEMONSTRATIONS, size)),
        ):
            rng = random.Random(stream_seed(seed, source.kind, subset, "demonstrations"))
            for e in self._distinct(
                source, rng, subset, count, lambda e: e.question, "demonstrations"
            ):
                yield replace(e, response=self.respond(e.task, source, rng))

    def _distinct(
        self,
        source: ArithmeticSource | ProgramsSource,
        rng: random.Random,
        subset: str,
        size: int,
        identity: Callable[[DrawnExample[Task]], Hashable],
        setting: str,
    ) -> Iterator[DrawnExample[Task]]:
        kinds, seen = list(self.kinds(source, subset)), set[Hashable]()
        while len(seen) < size:
            if not kinds:
                raise UserError(
                    f"data.sources: the source of kind {source.kind} has {setting} = {size}, and"
                    f" only {len(seen)} distinct ones of '{subset}' exist; lower {setting}"
                )
            kind = rng.choice(kinds)
            for _ in range(_TRIES):
                if (found := self.draw(rng, kind, subset)) is None:
                    continue
                example = DrawnExample(found[0], subset, found[1])
                if (name := identity(example)) not in seen:
                    seen.add(name)
                    yield example
                    break
            else:
                kinds.remove(kind)


SUMS = Generator(  # the prompts of a subset are distinct operand tuples (mul has 89)
    subsets=("train", "validation", "test", "test_steps"),
    kinds=lambda source, subset: arithmetic.kinds_of(source.steps),
    draw=arithmetic.draw,
    key=lambda problem: problem.key,
    respond=arithmetic.demonstrate,
)
TINY_PROGRAMS = Generator(  # the prompts of a subset are distinct programs (``*`` has 19)
    subsets=("train", "validation", "test"),
    kinds=lambda source, subset: list(programs.programs_of(subset)),
    draw=programs.draw,
    key=lambda program: program,
    respond=programs.demonstrate,
)

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
    held = {"test": WORDS[:: SHARES["test"]], "validation": WORDS[1 :: SHARES["validation"]]}
    taken = {word for words in held.values() for word in words}
    return held.get(subset) or tuple(word for word in WORDS if word not in taken)


def prompts(source: InstructionsSource, seed: int) -> Iterator[DrawnExample[Asked]]:
    """Yield the prompts of all subsets, distinct ones, a pure function of ``source`` and ``seed``.

    Raises UserError when a subset has too few.
    """
    for subset in ("train", "validation", "test"):
        size = getattr(source, subset)
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
            for index, example in enumerate(SUMS.examples(source, seed)):
                info = {"kind": example.task.kind, "numbers": example.task.numbers}
                yield _row(source, index, example, "math", str(example.task.answer), info)
        case ProgramsSource():
            for index, example in enumerate(TINY_PROGRAMS.examples(source, seed)):
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
    name = source.data_source or environment.name
    process = EnvironmentProcess(environment)
    try:
        rows: list[Row] = []
        for split in ("train", "validation", "test"):
            numbers = range(getattr(source, f"{split}_size"))
            seeds = [stream_seed(seed, ENVIRONMENT, split, number) for number in numbers]
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
