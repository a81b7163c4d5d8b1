"""What the generators of tasks share: distinct tasks of each subset, drawn from a seed."""

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rlcore.algorithms.seeds import stream_seed
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
    """The source of kind ``name``. ``kinds``: those of the tasks of a subset. ``draw``: a task of a
    kind and a subset with its question, or None for a draw that is unusable. ``key``: of equal
    tasks."""

    name: str
    kinds: Callable[[str], Sequence[str]]
    draw: Callable[[random.Random, str, str], tuple[Task, str] | None]
    key: Callable[[Task], Hashable]

    def prompts(self, seed: int, sizes: Mapping[str, int]) -> Iterator[DrawnExample[Task]]:
        """Yield as many prompts of each subset as ``sizes`` says, each of another task.

        Kinds are drawn evenly, and where one is exhausted the others make up for it. Raises
        ``UserError`` when a subset has too few tasks.
        """
        for subset, size in sizes.items():
            rng = random.Random(stream_seed(seed, self.name, subset))
            yield from self._distinct(rng, subset, size, lambda e: self.key(e.task), subset)

    def demonstrations(
        self, seed: int, size: int, respond: Callable[[Task, random.Random], str]
    ) -> Iterator[DrawnExample[Task]]:
        """Yield ``size`` demonstrations of ``train`` tasks, then ``VALIDATION_DEMONSTRATIONS`` of
        ``validation`` tasks, each of another question; ``respond`` writes their responses.

        Raises ``UserError`` when there are too few questions.
        """
        sizes = {"train": size, "validation": min(VALIDATION_DEMONSTRATIONS, size)}
        for subset, count in sizes.items():
            rng = random.Random(stream_seed(seed, self.name, subset, "demonstrations"))
            for e in self._distinct(rng, subset, count, lambda e: e.question, "demonstrations"):
                yield replace(e, response=respond(e.task, rng))

    def _distinct(
        self,
        rng: random.Random,
        subset: str,
        size: int,
        identity: Callable[[DrawnExample[Task]], Hashable],
        setting: str,
    ) -> Iterator[DrawnExample[Task]]:
        kinds, seen = list(self.kinds(subset)), set[Hashable]()
        while len(seen) < size:
            if not kinds:
                raise UserError(
                    f"data.sources: the source of kind {self.name} has {setting} = {size}, and only"
                    f" {len(seen)} distinct ones of '{subset}' exist; lower {setting}"
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
