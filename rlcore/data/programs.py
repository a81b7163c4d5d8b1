"""Generated descriptions of tiny programs, whose solutions are one line of Python in a block.

A program reads a number of four digits and applies one or two operations to it, in their order::

    Read a number, add 17, multiply by 3, print it.

    ```python
    print((int(input())+17)*3)
    ```

Which split a program belongs to depends on what it computes, not on a seed: a digest of its outputs
assigns a tenth of all programs to ``test`` and a tenth to ``validation``, so that two descriptions
of one function are never on both sides.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from operator import add, floordiv, mod, mul, sub

from rlcore.algorithms.seeds import stream_seed
from rlcore.data.split import tenth_of
from schemas.data import ProgramsSource

# Operators in the order of use. A sum before a product needs parentheses. No quotient follows a
# sum, since it would hide most errors in that sum from the tests.
KINDS = (*"+-*/%", "+*", "-*", "+%", "-%", "*+", "*-", "%+", "%-", "/+", "/-")
NUMBERS = {
    "+": range(2, 100),
    "-": range(2, 100),
    "*": range(2, 21),
    "/": range(2, 21),
    "%": range(11, 100),
}
# At most 12 words a prompt: short prompts are decontaminated by equality, not by shared word runs.
OPENINGS = ("Read a number", "Read an integer", "Input a number")
PHRASES = {
    "+": ("add {}", "increase by {}", "plus {}"),
    "-": ("subtract {}", "decrease by {}", "minus {}"),
    "*": ("multiply by {}", "times {}"),
    "/": ("floor divide by {}", "divide down by {}"),
    "%": ("take it modulo {}", "reduce modulo {}"),
}
RESPONSE = "```python\n{line}\n```"
# No Python block, one that does not end, no block at all, a program that prints nothing.
MALFORMED = ("```\n{line}\n```", "```python\n{line}", "{line}", "```python\n{expression}\n```")
INPUTS = range(1000, 10000)  # large enough for every wrong divisor to change every output
_PROBES = tuple(range(1009, 9973, 747))
_OPERATORS = {"+": add, "-": sub, "*": mul, "/": floordiv, "%": mod}
_NUMBER_READ = "int(input())"
_DRAWS = 16  # of inputs, until they tell a program from wrong ones


def calculate(left: int, op: str, right: int) -> int:
    """Return ``left op right`` for op in ``+-*/%``; a quotient is rounded down."""
    return _OPERATORS[op](left, right)


@dataclass(frozen=True, slots=True)
class Program:
    """Operations on the number that is read, in their order: ``(("+", 17), ("*", 3))``."""

    steps: tuple[tuple[str, int], ...]

    @property
    def kind(self) -> str:
        return "".join(op for op, _ in self.steps)

    def output(self, number: int) -> int:
        """Return what it prints for ``number``."""
        for op, right in self.steps:
            number = calculate(number, op, right)
        return number

    def expression(self, *, parentheses: bool = True) -> str:
        """Return its Python expression; without ``parentheses`` products and remainders of a sum
        are those of its last term."""
        text = _NUMBER_READ
        for i, (op, right) in enumerate(self.steps):
            if i and parentheses and op in "*/%" and self.steps[i - 1][0] in "+-":
                text = f"({text})"
            text += f"{'//' if op == '/' else op}{right}"
        return text

    def tests(self, count: int) -> dict[str, list[str]]:
        """Return ``count`` inputs and outputs of it, the same ones at every call.

        They tell it from every program that forgets a step or its parentheses or differs in an
        operation or modulus, where ``count`` inputs can; other wrong numbers change every output.
        """
        rng = random.Random(stream_seed(0, "programs", "tests", str(self.steps)))
        wrong = list(_near(self))
        for _ in range(_DRAWS):
            numbers = rng.sample(INPUTS, count)
            outputs = [self.output(number) for number in numbers]
            if not any(_computes(other, numbers, outputs) for other in wrong):
                break
        return {
            "inputs": [f"{number}\n" for number in numbers],
            "outputs": [f"{output}\n" for output in outputs],
        }

    @property
    def subset(self) -> str:
        """Return "train", "validation" or "test", by its outputs."""
        outputs = " ".join(str(self.output(number)) for number in _PROBES)
        return {0: "test", 1: "validation"}.get(tenth_of(outputs), "train")


def demonstrate(program: Program, rates: ProgramsSource, rng: random.Random) -> str:
    """Return a response with errors of independent kinds, each at its rate where it is possible;
    none computes what a held-out program computes.

    ``forgotten_step``: the second step is missing where the first is a product, quotient or
    remainder; elsewhere half as often, so that SFT alone learns to finish some programs.
    ``no_parentheses``: a sum before a product lacks them. ``wrong_operation`` and ``wrong_number``:
    one step has another operation or number, unless a held-out program has it too. ``malformed``:
    no block of Python that prints something.
    """
    forget_rate = rates.forgotten_step * (1.0 if program.kind[0] in "*/%" else 0.5)
    chances = (rates.wrong_operation, rates.wrong_number, forget_rate)
    changed_op, changed_number, forgotten = (rng.random() < chance for chance in chances)
    bare, malformed = (rng.random() < c for c in (rates.no_parentheses, rates.malformed))
    said = program
    if changed_op:
        said = _changed(said, rng, number=False)
    if changed_number:
        said = _changed(said, rng, number=True)
    if forgotten and len(said.steps) > 1 and _may_show(Program(said.steps[:1])):
        said = Program(said.steps[:1])
    bare = bare and _may_show(_without_parentheses(said))
    expression = said.expression(parentheses=not bare)
    form = rng.choice(MALFORMED) if malformed else RESPONSE
    return form.format(line=f"print({expression})", expression=expression)


def _may_show(program: Program) -> bool:
    return program.subset == "train"


def _without_parentheses(program: Program) -> Program:
    """Return what ``program`` computes when it is written without parentheses."""
    match program.steps:
        case (("+" | "-") as sign, term), (("*" | "/" | "%") as op, right):
            return Program(((sign, calculate(term, op, right)),))
    return program


def _changed(program: Program, rng: random.Random, *, number: bool) -> Program:
    """Return ``program`` with another operation or number in one step; itself where all forms are
    held out."""
    forms = [form for i in range(len(program.steps)) for form in _forms(program, i, number=number)]
    rng.shuffle(forms)
    return next((form for form in forms if _may_show(form)), program)


def _forms(program: Program, step: int, *, number: bool) -> list[Program]:
    """Return what ``program`` is with another number, or operation, in that step."""
    op, right = program.steps[step]
    if number:
        others = [(op, other) for other in NUMBERS[op] if other != right]
    else:
        others = [(other, right) for other in NUMBERS if other != op]
    before, after = program.steps[:step], program.steps[step + 1 :]
    return [Program((*before, other, *after)) for other in others]


def _near(program: Program) -> Iterator[Program]:
    """Yield the programs that ``Program.tests`` are to tell from ``program``."""
    for i, (op, _) in enumerate(program.steps):
        yield from _forms(program, i, number=False)
        if op == "%":
            yield from _forms(program, i, number=True)
    if len(program.steps) > 1:
        yield from (Program((step,)) for step in program.steps)
        bare = _without_parentheses(program)
        if bare != program:
            yield bare


def _computes(program: Program, numbers: Sequence[int], outputs: Sequence[int]) -> bool:
    return all(program.output(n) == out for n, out in zip(numbers, outputs, strict=True))


@cache
def programs_of(subset: str) -> dict[str, tuple[Program, ...]]:
    """Return all programs of ``subset`` by kind."""
    found: dict[str, list[Program]] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        for numbers in product(*(NUMBERS[op] for op in kind)):
            program = Program(tuple(zip(kind, numbers, strict=True)))
            if program.subset == subset:
                found[kind].append(program)
    return {kind: tuple(programs) for kind, programs in found.items() if programs}


def draw(rng: random.Random, kind: str, subset: str) -> tuple[Program, str]:
    program = rng.choice(programs_of(subset)[kind])
    parts = [rng.choice(PHRASES[op]).format(number) for op, number in program.steps]
    return program, ", ".join([rng.choice(OPENINGS), *parts, "print it."])
