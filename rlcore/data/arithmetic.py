"""The generated task: short word problems over two-digit numbers with a written carry.

The universe of problems is small enough to enumerate, so splits are sets of operand tuples, not
draws: ``(kind, numbers)`` falls to test, validation or train by its digest, whatever the seed.
Steps ``(a, op, b)`` are held out the same way; a problem with such a step belongs to "test_steps"
alone.

A solution writes one line per step, ``AA op BB:CU,T=TU``: units first (the unit sum of +, the
borrow flag and unit digit of -, the unit product of *), then the tens digit of the result, then the
result. Example: ``78+13:11,9=91``, ``91-50:01,4=41``, ``#### 41``.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from rlcore.seeds import stream_seed
from schemas.data import ArithmeticSource
from schemas.errors import UserError

OPERATIONS = {"add": "+", "sub": "-", "mul": "*", "addsub": "+-", "muladd": "*+", "mulsub": "*-"}
OPERANDS = range(10, 100)
FACTORS = range(2, 6)
RESULTS = range(1, 100)
HELD_OUT_EVERY = 10
NAMES = ("Ann", "Ben", "Tom")
THINGS = ("pens", "eggs", "cups")
TEMPLATES = {
    "add": (
        "{who} has {0} {what} and buys {1}. How many?",
        "{who} had {0} {what}. Then {who} got {1} more. Total?",
    ),
    "sub": (
        "{who} has {0} {what} and sells {1}. How many?",
        "{who} had {0} {what}. Then {who} lost {1}. Left?",
    ),
    "mul": (
        "{who} has {0} {what} in each of {1} bags. How many?",
        "{0} {what} fill a box. {who} has {1} boxes. Total?",
    ),
    "addsub": (
        "{who} has {0} {what}, buys {1} and sells {2}. How many?",
        "{who} had {0} {what}. Then {who} got {1} more and lost {2}. Left?",
    ),
    "muladd": (
        "{who} has {0} {what} in each of {1} bags and buys {2}. How many?",
        "{0} {what} fill a box. {who} has {1} boxes and {2} more. Total?",
    ),
    "mulsub": (
        "{who} has {0} {what} in each of {1} bags and sells {2}. How many?",
        "{0} {what} fill a box. {who} had {1} boxes, lost {2}. Left?",
    ),
}
MALFORMED = ("### {}", "{}", "answer {}")
OFFSETS = (-10, -2, -1, 1, 2, 10)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on numbers of at most two digits."""

    a: int
    op: str
    b: int

    @property
    def result(self) -> int:
        return {"+": self.a + self.b, "-": self.a - self.b, "*": self.a * self.b}[self.op]

    @property
    def line(self) -> str:
        """The written step; see the module's docstring."""
        a, b = self.a % 10, self.b % 10
        units = {"+": a + b, "-": (10 if a < b else 0) + (a - b) % 10, "*": a * b}[self.op]
        tens, result = self.result // 10, self.result
        return f"{self.a:02d}{self.op}{self.b:02d}:{units:02d},{tens}={result:02d}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind and its operands, in the order in which they are used."""

    kind: str
    numbers: tuple[int, ...]

    @property
    def steps(self) -> list[Step]:
        return chain(OPERATIONS[self.kind], self.numbers)

    @property
    def answer(self) -> int:
        return self.steps[-1].result

    @property
    def key(self) -> str:
        """Equal for problems that differ in the order of an addition's operands only."""
        a, b, *rest = self.numbers
        if OPERATIONS[self.kind][0] == "+" and a > b:
            a, b = b, a
        return f"{self.kind} {a} {b} {rest}"


@dataclass(frozen=True, slots=True)
class Example:
    """A problem in words. ``response``: a demonstration's, imperfect on purpose; empty for a prompt.

    ``subset``: "train", "validation", "test" or "test_steps".
    """

    subset: str
    problem: Problem
    question: str
    response: str


def generate(source: ArithmeticSource, seed: int) -> tuple[list[Example], list[Example]]:
    """Return (prompts, demonstrations), a function of the arguments alone.

    Prompts of a subset differ in their operand tuples; kinds come in equal shares as far as their
    problems reach. Demonstrations draw kind and problem with replacement: ``source.demonstrations``
    from train tuples, ``source.validation`` from validation tuples. Raises ``UserError`` when a
    subset has fewer problems than are asked for.
    """
    counts = {
        "train": source.train,
        "validation": source.validation,
        "test": source.test,
        "test_steps": source.test_steps,
    }
    prompts = [
        Example(subset, problem, question(problem, rng), response="")
        for subset, count in counts.items()
        for rng in [random.Random(stream_seed(seed, "arithmetic", "prompts", subset))]
        for problem in _distinct(subset, count, rng)
    ]
    demonstrations = []
    for split, count in {
        "train": source.demonstrations,
        "validation": source.validation,
    }.items():
        rng = random.Random(stream_seed(seed, "arithmetic", "demonstrations", split))
        pools, kinds = universe()[split], list(OPERATIONS)
        for _ in range(count):
            kind = rng.choice(kinds)
            problem = Problem(kind, rng.choice(pools[kind]))
            text = question(problem, rng)
            demonstrations.append(
                Example(split, problem, text, imperfect_solution(problem, source, rng))
            )
    return prompts, demonstrations


def chain(operations: str, numbers: tuple[int, ...]) -> list[Step]:
    """Return the steps of ``numbers[0] op numbers[1] op numbers[2]``, from the left."""
    steps: list[Step] = []
    value = numbers[0]
    for op, b in zip(operations, numbers[1:], strict=True):
        steps.append(Step(value, op, b))
        value = steps[-1].result
    return steps


def _bucket(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % HELD_OUT_EVERY


@cache
def is_held_out(step: Step) -> bool:
    """Return whether the step is kept out of everything but "test_steps" (about one in ten)."""
    a, b = sorted((step.a, step.b)) if step.op == "+" else (step.a, step.b)
    return _bucket(f"step {a}{step.op}{b}") == 0


def subset_of(problem: Problem) -> str:
    """Return "test_steps", "test", "validation" or "train"."""
    if any(is_held_out(step) for step in problem.steps):
        return "test_steps"
    return {0: "test", 1: "validation"}.get(_bucket(problem.key), "train")


def problems(kind: str) -> list[tuple[int, ...]]:
    """Return the numbers of every problem whose intermediate and final results are in 1..99."""
    rows = [((a,), a) for a in OPERANDS]
    for op in OPERATIONS[kind]:
        operate = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[op]
        rows = [
            ((*numbers, b), result)
            for numbers, value in rows
            for b in (FACTORS if op == "*" else OPERANDS)
            if 1 <= (result := operate(value, b)) <= 99
        ]
    return [numbers for numbers, _ in rows]


@lru_cache(maxsize=1)
def universe() -> dict[str, dict[str, list[tuple[int, ...]]]]:
    """Return the numbers of all problems by subset and kind; about 0.2 million of them."""
    pools: dict[str, dict[str, list[tuple[int, ...]]]] = {
        subset: {kind: [] for kind in OPERATIONS}
        for subset in ("train", "validation", "test", "test_steps")
    }
    for kind in OPERATIONS:
        for numbers in problems(kind):
            pools[subset_of(Problem(kind, numbers))][kind].append(numbers)
    return pools


def question(problem: Problem, rng: random.Random) -> str:
    """Return the word problem, its numbers unpadded."""
    template = rng.choice(TEMPLATES[problem.kind])
    return template.format(*problem.numbers, who=rng.choice(NAMES), what=rng.choice(THINGS))


def imperfect_solution(problem: Problem, rates: ArithmeticSource, rng: random.Random) -> str:
    """Return a solution with the four errors of ``rates``, each drawn independently.

    A wrong operation's arithmetic is consistent and carried through; it is left out where no other
    operation stays in range and clear of held-out steps. An early stop reports step 1's result.
    """
    steps = problem.steps
    if rng.random() < rates.wrong_operation:
        steps = rng.choice(_wrong_chains(problem) or [steps])
    if rng.random() < rates.stop_early:
        steps = steps[:1]
    answer = steps[-1].result
    if rng.random() < rates.off_result:
        answer = rng.choice([answer + d for d in OFFSETS if answer + d >= 0])
    last = "#### {}"
    if rng.random() < rates.malformed:
        last = rng.choice(MALFORMED)
    return "\n".join([*(step.line for step in steps), last.format(answer)])


def _wrong_chains(problem: Problem) -> list[list[Step]]:
    """Return the chains with exactly one other operation, in range and without held-out steps."""
    right = OPERATIONS[problem.kind]
    variants = [
        chain(right[:i] + op + right[i + 1 :], problem.numbers)
        for i in range(len(right))
        for op in "+-*"
        if op != right[i]
    ]
    return [
        steps
        for steps in variants
        if all(step.result in RESULTS and not is_held_out(step) for step in steps)
    ]


def _distinct(subset: str, count: int, rng: random.Random) -> Iterator[Problem]:
    pools = {kind: list(pool) for kind, pool in universe()[subset].items()}
    for pool in pools.values():
        rng.shuffle(pool)
    seen: set[str] = set()
    while len(seen) < count:
        left = [kind for kind, pool in pools.items() if pool]
        if not left:
            raise UserError(
                f"data.sources: 'arithmetic' has {subset} = {count} and only {len(seen)} problems"
                f" of that subset exist; lower {subset}"
            )
        kind = rng.choice(left)
        problem = Problem(kind, pools[kind].pop())
        if problem.key not in seen:
            seen.add(problem.key)
            yield problem
