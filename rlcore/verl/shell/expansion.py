"""Words of the shell become values: variables, defaults, arrays, arithmetic; or why one is
unknown."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass

from rlcore.verl.shell.lexer import Arithmetic, LiteralText, Substitution, Variable, Word
from schemas.errors import UserError


@dataclass(frozen=True, slots=True)
class Text:
    """``unknown``: why only running the script could tell the value, which is then as written.

    ``unset``: which variable without a value made it (partly) empty. Both are "" where there is no
    such thing.
    """

    value: str
    unknown: str = ""
    unset: str = ""

    @property
    def problem(self) -> str:
        """Why the value must not be used for a setting; "" when it may."""
        return self.unknown or self.unset


SHOWN = 80  # characters of a script that a sentence quotes
Value = Text | tuple[Text, ...]  # an array is a tuple


def shown(text: str) -> str:
    """Return text of a script for a sentence: on one line, and not too long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= SHOWN else f"{flat[:SHOWN]}..."


def join(texts: Iterable[Text], between: str = "") -> Text:
    """Return the texts one after another; what is not known of one is not known of all."""
    known = list(texts)
    unknown = next((text.unknown for text in known if text.unknown), "")
    unset = next((text.unset for text in known if text.unset), "")
    return Text(between.join(text.value for text in known), unknown, unset)


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
    problem = f"{written} is not arithmetic that is read here; write the number"

    def evaluate(node: ast.expr) -> int:
        nonlocal problem
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return value
            case ast.Name(id=name):
                found = lookup(name)
                problem = found.problem or problem
                return int("" if found.problem else found.value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -evaluate(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                result = _OPERATORS[type(op)](evaluate(left), evaluate(right))
                if abs(result) <= LARGEST:
                    return result
        raise ValueError

    try:
        return Text(str(evaluate(ast.parse(expression.value.strip(), mode="eval").body)))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return Text(written, unknown=problem)


BASH_X = "give the output of `bash -x` on the script instead"
LONGEST = 1_000_000  # characters of one value, so that no script can fill the memory
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
Variables = MutableMapping[str, Value]  # those of the environment among them


class Expansion:
    """Expands words over ``variables``.

    ``substitute`` gives the output of ``$(...)``. The script is read without arguments, so ``"$@"``
    is nothing.
    """

    def __init__(self, variables: Variables, substitute: Callable[[Substitution], Text]) -> None:
        self.variables, self.substitute = variables, substitute

    def text(self, word: Word) -> Text:
        """Return the word as one value, as in an assignment."""
        return join(join(texts, " ") for texts, _ in self._chunks(word))

    def fields(self, word: Word) -> list[Text]:
        """Return the words that a command gets for it: an array becomes several, nothing none."""
        done: list[Text] = []
        parts: list[Text] = []
        solid = False  # a field of unquoted values that are all empty is none
        for texts, quoted in self._chunks(word):
            chunks = texts if quoted else [part for text in texts for part in _split(text)]
            for index, chunk in enumerate(chunks):
                if index:
                    done += [join(parts)] if solid else []
                    parts, solid = [], False
                parts.append(chunk)
                solid = solid or quoted or bool(chunk.value)
        return [*done, join(parts)] if solid else done

    def assign(self, word: Word) -> None:
        """Carry out the assignment ``word``: ``NAME=value``, ``NAME+=value`` or of an array."""
        first = word.pieces[0]
        assert isinstance(first, LiteralText)
        match = _ASSIGNMENT.match(first.text)
        assert match is not None
        name, adds = match[1], bool(match[2])
        before = self.variables.get(name) if adds else None
        old = before if isinstance(before, tuple) else () if before is None else (before,)
        value: Value
        if word.array is not None:
            value = (*old, *(text for each in word.array for text in self.fields(each)))
        else:
            rest = LiteralText(first.text[match.end() :])
            value = self.text(Word((rest, *word.pieces[1:]), word.line))
            value = (*old, value) if isinstance(before, tuple) else join([*old, value])
        parts = value if isinstance(value, tuple) else (value,)
        if sum(len(part.value) + 1 for part in parts) > LONGEST:
            raise UserError(f"line {word.line}: {name} grows beyond {LONGEST} characters; {BASH_X}")
        self.variables[name] = value

    def _chunks(self, word: Word) -> Iterator[tuple[list[Text], bool]]:
        """Yield the values of each piece, and whether blanks in them are part of the value."""
        for piece in word.pieces:
            match piece:
                case LiteralText(text=text):
                    yield [Text(text)], piece.quoted
                case Arithmetic(body=body):
                    yield [compute(self.text(body), self._number)], True
                case Substitution():
                    yield [self.substitute(piece)], piece.quoted
                case Variable():
                    found = self._variable(piece)
                    if isinstance(found, Word):
                        yield from self._chunks(found)
                    else:
                        yield found, piece.quoted

    def _number(self, name: str) -> Text:
        found = self.variables.get(name)
        return found if isinstance(found, Text) else _unset(name)

    def _variable(self, variable: Variable) -> list[Text] | Word:
        """Return the values of a variable, or the word that replaces them."""
        name = variable.name
        if name in ("@", "*"):
            return []
        if name == "#":
            return [Text("0")]
        default = variable.operand is not None and not variable.operator.endswith("?")
        if default and name.isdigit() and name != "0":
            return [] if variable.operator.endswith("+") else variable.operand or []
        if not name.isidentifier():
            why = f"${name} is known to a running script only; write its value out"
            return [Text(f"${name}", unknown=why)]
        if variable.operator == "other":
            why = f"${{{name}...}} takes a part of a value, which is not read; write its value out"
            return [Text(f"${{{name}...}}", unknown=why)]
        found = self.variables.get(name)
        if variable.index in ("@", "*"):
            values = [] if found is None else list(found) if isinstance(found, tuple) else [found]
            return self._array(variable, values)
        if isinstance(found, tuple):
            index = variable.index or "0"
            known = index.isdigit() and int(index) < len(found)
            found = found[int(index)] if known else None
        if variable.operator == "#":
            length = "0" if found is None else str(len(found.value))
            return [Text(length, unknown=found.unknown if found else "")]
        empty = found is None or (
            variable.operator.startswith(":") and not found.value and not found.unknown
        )
        operand = variable.operand
        if operand is None or variable.operator.endswith("?"):
            return [found or _unset(name)]
        if variable.operator.endswith("+"):
            return [Text("")] if empty else operand
        if found is not None and not empty:
            return [found]
        if variable.operator.endswith("="):
            self.variables[name] = self.text(operand)
        return operand if operand.pieces else [Text("")]

    def _array(self, variable: Variable, values: list[Text]) -> list[Text] | Word:
        operand = variable.operand
        if variable.operator == "#":
            return [Text(str(len(values)))]
        if operand is not None and variable.operator.endswith("+"):
            return operand if values else []
        if operand is not None and not values and not variable.operator.endswith("?"):
            return operand
        if variable.index == "*" and variable.quoted:
            return [join(values, " ")]
        return values


def _unset(name: str) -> Text:
    return Text("", unset=f"shell variable ${name} has no value in the text; write it out")


def _split(text: Text) -> list[Text]:
    """Return an unquoted value at its blanks; "" at an end where a blank separates it."""
    if text.unknown:
        return [text]
    return [Text(part, unset=text.unset) for part in re.split(r"[ \t\n]+", text.value)]


def assigns(word: Word) -> bool:
    """Return whether the word begins with ``NAME=`` or ``NAME+=``."""
    first = word.pieces[0] if word.pieces else None
    return (
        isinstance(first, LiteralText) and not first.quoted and bool(_ASSIGNMENT.match(first.text))
    )
