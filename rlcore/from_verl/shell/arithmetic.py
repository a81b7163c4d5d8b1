"""Whole-number arithmetic of the shell: ``$((a * (b + 1) / 2))``."""

import ast
from collections.abc import Callable

from rlcore.from_verl.shell.value import Text, shown

LARGEST = 2**63 - 1  # what the shell computes with; beyond it wraps around
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: (abs(a) % abs(b)) * (1 if a >= 0 else -1),
}


def compute(expression: Text, lookup: Callable[[str], Text]) -> Text:
    """Return the number that ``expression`` is, or why it is none; ``lookup`` gives variables."""
    written = f"$(({shown(expression.value)}))"
    if expression.problem:
        return Text(written, expression.unknown, expression.unset)
    variable: list[Text] = []  # that has no number

    def evaluate(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return value
            case ast.Name(id=name):
                found = lookup(name)
                if found.problem or not found.value.strip().lstrip("-").isdigit():
                    variable.append(found)
                    raise ValueError(f"{written}: {name} = {found.value!r} is no whole number")
                return int(found.value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -evaluate(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                result = _OPERATORS[type(op)](evaluate(left), evaluate(right))
                if abs(result) > LARGEST:
                    raise ValueError(f"{written} is beyond 64 bits; write the number")
                return result
        raise ValueError(f"{written} is arithmetic that is not supported; write the number")

    try:
        return Text(str(evaluate(ast.parse(expression.value.strip(), mode="eval").body)))
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return Text(written, unknown=f"{written} is not arithmetic; write the number")
    except ValueError as error:
        problem = variable[0].problem if variable else ""
        return Text(written, unknown=problem or str(error))
