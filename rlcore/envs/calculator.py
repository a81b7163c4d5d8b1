"""A calculator as a tool, and word problems that are hard without one.

The problems are of the size of the quickstart's, with products that a small model cannot work out
and a calculator can. The demonstrations are imperfect on purpose: reinforcement learning is left
something to correct.
"""

import ast
import operator
import random
import re
from collections.abc import Callable
from typing import Any

from rlcore.envs.tools import ToolCall, written
from rlcore.envs.types import Start

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_LONGEST = 200  # characters of an expression
_LARGEST = 10**30
_NUMBER = re.compile(r"\d+")

_NAMES = ("Ann", "Ben", "Eva", "Leo", "Mia", "Sam", "Tom", "Zoe")
_THINGS = ("pens", "eggs", "nuts", "cards", "coins", "books", "beads", "seeds")


class Calculator:
    """Adds, subtracts, multiplies and divides.

    ``no_call``, ``wrong_operation``, ``malformed``: shares of its demonstrations that make that
    error; ``no_call`` answers with a number of the question, and about bags only a third as often.
    So what is likeliest after SFT is wrong for two kinds of problems of three.
    """

    def __init__(
        self, no_call: float = 0.6, wrong_operation: float = 0.2, malformed: float = 0.1
    ) -> None:
        self._no_call, self._wrong, self._malformed = no_call, wrong_operation, malformed

    def reset(self, seed: int, data_source: str = "calculator") -> Start | None:
        """Return the problem of ``seed``, or nothing where the prompts come from data."""
        if data_source != "calculator":
            return None
        question, _, value = _problem(random.Random(seed))
        return Start([{"role": "user", "content": question}], str(value))

    def calculate(self, expression: str) -> str:
        """Return the value of an arithmetic expression.

        Args:
            expression: Numbers, + - * / // % and parentheses, e.g. 12*(3+4).
        """
        return evaluated(expression)

    def demonstration(self, seed: int) -> list[dict[str, str]]:
        """Return the problem of ``seed``, solved with the tool, or with one of the errors."""
        draw = random.Random(seed)
        question, expression, _ = _problem(draw)
        messages = [{"role": "user", "content": question}]
        guess = random.Random(draw.random())
        if guess.random() < self._no_call / (3 if "bags" in question else 1):
            lazy = guess.choice(_NUMBER.findall(question))
            return [*messages, {"role": "assistant", "content": f"#### {lazy}"}]
        if guess.random() < self._wrong:
            expression = _other(expression, guess)
        call = written(ToolCall("calculate", {"expression": expression}))
        if guess.random() < self._malformed:
            call = call.replace("}}", "}")
        said = evaluated(expression)
        if "}}" not in call:
            return [*messages, {"role": "assistant", "content": call}]
        return [
            *messages,
            {"role": "assistant", "content": call},
            {"role": "tool", "content": said},
            {"role": "assistant", "content": f"#### {said}"},
        ]


def evaluated(expression: str) -> str:
    """Return the value of ``expression`` as text, or "error: ..." where it has none.

    Integers stay integers. Only numbers, the four operations and their integer forms are computed;
    nothing is looked up, called or raised to a power.
    """
    if len(expression) > _LONGEST:
        return f"error: an expression may have {_LONGEST} characters"
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except ZeroDivisionError:
        return "error: division by zero"
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return "error: this is no arithmetic expression"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _value(node: ast.AST) -> int | float:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError
        case ast.Constant(value=int() | float() as number):
            value = number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            value = _OPERATORS[type(op)](_value(left), _value(right))
        case _:
            raise ValueError
    if abs(value) > _LARGEST:
        raise OverflowError
    return value


def _problem(draw: random.Random) -> tuple[str, str, int]:
    """Return question, expression and value of a problem of two steps.

    All values have four digits: where they differ in length, a model of two layers learns on some
    seeds only to copy what the calculator returns.
    """
    name, thing, kind = draw.choice(_NAMES), draw.choice(_THINGS), draw.randrange(3)
    while True:
        boxes, each, more = draw.randint(12, 99), draw.randint(12, 99), draw.randint(100, 999)
        match kind:
            case 0:
                told = f"has {boxes} boxes of {each} {thing} and gets {more} more."
                expression, value = f"{boxes}*{each}+{more}", boxes * each + more
            case 1:
                told = f"has {boxes} boxes of {each} {thing} and sells {more}."
                expression, value = f"{boxes}*{each}-{more}", boxes * each - more
            case _:
                told = f"packs {boxes} and {more} {thing} in each of {each} bags."
                expression, value = f"({boxes}+{more})*{each}", (boxes + more) * each
        if 1000 <= value <= 9999:
            return f"{name} {told} How many {thing}?", expression, value


def _other(expression: str, draw: random.Random) -> str:
    """Return ``expression`` with another operation in one place."""
    places = [index for index, sign in enumerate(expression) if sign in "+-*"]
    place = draw.choice(places)
    signs = [sign for sign in "+-*" if sign != expression[place]]
    return expression[:place] + draw.choice(signs) + expression[place + 1 :]
