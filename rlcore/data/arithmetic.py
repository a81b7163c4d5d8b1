"""Generated two-digit word problems whose solutions spell each step out, digit by digit.

A response holds one line per step, ``AA op BB:CU,T=TU`` with two-digit numbers, then ``#### N``::

    78+13:11,9=91        CU: the unit sum (+), borrow flag and unit digit (-), unit product (*)
    91-50:01,4=41        T: tens digit of the result; TU: the result
    #### 41

Every intermediate and result is in 1..99. Whether a problem may be trained on depends on its
numbers, not on a seed: a tenth of the single steps (a, op, b) occurs in ``test_steps`` only, and of
the other operand tuples a digest assigns a tenth to ``test`` and a tenth to ``validation``.
"""

import random
from dataclasses import dataclass
from functools import cache

from rlcore.data.programs import calculate
from rlcore.data.split import tenth_of
from schemas.data import ArithmeticSource

KINDS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "addsub": "+-",
    "muladd": "*+",
    "mulsub": "*-",
    "addsubadd": "+-+",
    "subaddsub": "-+-",
    "muladdsub": "*+-",
    "mulsubadd": "*-+",
}
LARGEST = 99
NAMES = ("Tom", "Ann", "Ben", "Mia", "Leo", "Eva", "Sam", "Zoe")
THINGS = ("apples", "books", "coins", "cards", "pens", "eggs")
# At most 12 words each: short prompts are decontaminated by equality, not by shared word runs.
TEMPLATES = {
    "add": (
        "{name} has {0} {things} and gets {1}. How many now?",
        "{name} has {0} {things}, then finds {1}. How many now?",
        "{name} has {0} {things} and buys {1}. How many now?",
    ),
    "sub": (
        "{name} has {0} {things} and loses {1}. How many now?",
        "{name} has {0} {things}, then sells {1}. How many now?",
        "{name} has {0} {things} and gives {1}. How many now?",
    ),
    "mul": (
        "{name} has {1} bags of {0} {things}. How many now?",
        "{name} has {1} boxes of {0} {things}. How many now?",
        "{name} buys {1} bags of {0} {things}. How many now?",
    ),
    "addsub": (
        "{name} has {0} {things}, gets {1}, loses {2}. How many now?",
        "{name} has {0} {things}, finds {1}, sells {2}. How many now?",
        "{name} has {0} {things}, buys {1}, gives {2}. How many now?",
    ),
    "muladd": (
        "{name} has {1} bags of {0} {things}, gets {2}. How many now?",
        "{name} has {1} boxes of {0} {things}, finds {2}. How many now?",
        "{name} buys {1} bags of {0} {things}, buys {2}. How many now?",
    ),
    "mulsub": (
        "{name} has {1} bags of {0} {things}, loses {2}. How many now?",
        "{name} has {1} boxes of {0} {things}, sells {2}. How many now?",
        "{name} buys {1} bags of {0} {things}, gives {2}. How many now?",
    ),
    "addsubadd": (
        "{name} has {0} {things}, gets {1}, loses {2}, gets {3}. How many?",
        "{name} has {0} {things}, finds {1}, sells {2}, buys {3}. How many?",
        "{name} has {0} {things}, buys {1}, gives {2}, finds {3}. How many?",
    ),
    "subaddsub": (
        "{name} has {0} {things}, loses {1}, gets {2}, loses {3}. How many?",
        "{name} has {0} {things}, sells {1}, finds {2}, gives {3}. How many?",
        "{name} has {0} {things}, gives {1}, buys {2}, sells {3}. How many?",
    ),
    "muladdsub": (
        "{name} has {1} bags of {0} {things}, gets {2}, loses {3}. Now?",
        "{name} has {1} boxes of {0} {things}, finds {2}, sells {3}. Now?",
        "{name} buys {1} bags of {0} {things}, buys {2}, gives {3}. Now?",
    ),
    "mulsubadd": (
        "{name} has {1} bags of {0} {things}, loses {2}, gets {3}. Now?",
        "{name} has {1} boxes of {0} {things}, sells {2}, finds {3}. Now?",
        "{name} buys {1} bags of {0} {things}, gives {2}, buys {3}. Now?",
    ),
}
MALFORMED = ("{n}", "####{n}", "### {n}", "#### {n}.")
OFF_BY = (-10, -2, -1, 1, 2, 10)


@cache
def is_held_out(left: int, op: str, right: int) -> bool:
    """Return whether the step occurs in ``test_steps`` only; ``a+b`` and ``b+a`` are one step."""
    if op == "+":
        left, right = sorted((left, right))
    return tenth_of(f"step {left}{op}{right}") == 0


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind and its operands in the order of use: a factor 2..5, all others 10..99."""

    kind: str
    numbers: tuple[int, ...]

    @property
    def steps(self) -> list[tuple[int, str, int]]:
        """(left, op, right) of each step of the right solution."""
        steps, value = [], self.numbers[0]
        for op, right in zip(KINDS[self.kind], self.numbers[1:], strict=True):
            steps.append((value, op, right))
            value = calculate(value, op, right)
        return steps

    @property
    def answer(self) -> int:
        return calculate(*self.steps[-1])

    @property
    def key(self) -> str:
        """Identity of the operand tuple: the operands of an addition sorted first."""
        numbers = self.numbers
        if self.kind.startswith("add"):
            numbers = (*sorted(numbers[:2]), *numbers[2:])
        return f"{self.kind} {' '.join(map(str, numbers))}"

    @property
    def subset(self) -> str:
        """Return "train", "validation", "test" or "test_steps"."""
        if any(is_held_out(*step) for step in self.steps):
            return "test_steps"
        return {0: "test", 1: "validation"}.get(tenth_of(self.key), "train")


def kinds_of(steps: tuple[int, int]) -> list[str]:
    """Return the kinds whose number of steps is within ``steps`` (fewest, most)."""
    fewest, most = steps
    return [kind for kind, operations in KINDS.items() if fewest <= len(operations) <= most]


def demonstrate(problem: Problem, rates: ArithmeticSource, rng: random.Random) -> str:
    """Return a response with errors of independent kinds, each at its rate where it is possible; no
    held-out step occurs in one.

    ``wrong_operation``: one step uses another operation, its arithmetic consistent and carried
    through. ``off_result``: one result is off by 1, 2 or 10 and carried through. Both are left out
    where all their forms leave 1..99 or contain a held-out step. ``stop_early``: a problem that
    begins with a product ends after step 1; other problems do so half as often, so that SFT alone
    learns to finish some of them. ``malformed``: the last line breaks the ``#### N`` form.
    """
    multiplies = KINDS[problem.kind][0] == "*"
    stop_rate = rates.stop_early if multiplies else rates.stop_early / 2
    chances = (rates.wrong_operation, rates.off_result, stop_rate, rates.malformed)
    wrong, off, stop, malformed = (rng.random() < chance for chance in chances)
    operations = KINDS[problem.kind]
    changed_op = changed_result = None
    if wrong:
        choices = [(i, op) for i, right in enumerate(operations) for op in "+-*" if op != right]
        rng.shuffle(choices)
        changed_op = next((c for c in choices if _trace(problem, c)), None)
    if off:
        shifts = [(i, delta) for i in range(len(operations)) for delta in OFF_BY]
        rng.shuffle(shifts)
        changed_result = next((s for s in shifts if _trace(problem, changed_op, s)), None)
    lines = _trace(problem, changed_op, changed_result)
    assert lines, f"{problem}: no admissible response"
    if stop:
        lines = lines[:1]
    form = rng.choice(MALFORMED) if malformed else "#### {n}"
    return "\n".join([*lines, form.format(n=int(lines[-1][-2:]))])


def _trace(
    problem: Problem,
    changed_op: tuple[int, str] | None = None,
    changed_result: tuple[int, int] | None = None,
) -> list[str] | None:
    """Return the step lines, or None where a result leaves 1..99 or an altered step is held out."""
    lines, value = [], problem.numbers[0]
    altered = False
    for i, (op, right) in enumerate(zip(KINDS[problem.kind], problem.numbers[1:], strict=True)):
        if changed_op and changed_op[0] == i:
            op, altered = changed_op[1], True
        left, value = value, calculate(value, op, right)
        if not 1 <= value <= LARGEST or (altered and is_held_out(left, op, right)):
            return None
        written = value
        if changed_result and changed_result[0] == i:
            written, altered = value + changed_result[1], True
        if not 1 <= written <= LARGEST:
            return None
        lines.append(
            f"{left:02}{op}{right:02}:{_units(left, op, right)},{value // 10}={written:02}"
        )
        value = written
    return lines


def _units(left: int, op: str, right: int) -> str:
    a, b = left % 10, right % 10
    if op == "-":
        return f"{int(a < b)}{(a - b) % 10}"
    return f"{calculate(a, op, b):02}"


def draw(rng: random.Random, kind: str, subset: str) -> tuple[Problem, str] | None:
    """Return a problem of ``kind`` and its question, or None where its numbers leave 1..99 or it is
    of another subset."""
    first = rng.randrange(10, LARGEST // 2 + 1 if KINDS[kind][0] == "*" else LARGEST + 1)
    numbers, value = [first], first
    for op in KINDS[kind]:
        right = rng.randrange(2, 6) if op == "*" else rng.randrange(10, LARGEST + 1)
        value = calculate(value, op, right)
        if not 1 <= value <= LARGEST:
            return None
        numbers.append(right)
    problem = Problem(kind, tuple(numbers))
    if problem.subset != subset:
        return None
    question = rng.choice(TEMPLATES[kind]).format(
        *numbers, name=rng.choice(NAMES), things=rng.choice(THINGS)
    )
    return problem, question
