"""A script is followed up to the command that is looked for; nothing of it is run."""

import contextlib
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from importlib.util import find_spec

from rlcore.verl.shell.expansion import BASH_X, Expansion, Text, Variables, assigns, join, shown
from rlcore.verl.shell.lexer import Substitution, Word
from rlcore.verl.shell.parser import (
    Block,
    Body,
    Case,
    Chain,
    Function,
    If,
    Simple,
    Statement,
    parse,
    simple_statements,
)
from schemas.errors import UserError

_IMPORT = re.compile(r"\s*import (\w+)\s*")
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


def holds(words: Sequence[Text], *, conditional: bool) -> bool | None:
    """Return whether the test of ``words`` holds; None: only running it could tell.

    ``conditional``: of ``[[``, which compares with a pattern and knows ``&&`` and ``||``.
    """
    for joint, decides in (("||", True), ("&&", False)) if conditional else ():
        if joint in (values := [word.value for word in words]):
            at = values.index(joint)
            sides = [holds(part, conditional=True) for part in (words[:at], words[at + 1 :])]
            return decides if decides in sides else None if None in sides else not decides
    if len(words) > 1 and words[0].value == "!":
        inner = holds(words[1:], conditional=conditional)
        return None if inner is None else not inner
    if any(word.unknown for word in words):
        return None
    match [word.value for word in words]:
        case []:
            return False
        case [text] | ["-n", text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case [left, "=" | "==" | "!=" as sign, right]:
            equal = fnmatchcase(left, right) if conditional else left == right
            return equal is (sign != "!=")
        case [left, comparison, right] if comparison in _NUMBERS:
            try:
                return _NUMBERS[comparison](int(left), int(right))
            except ValueError:
                return None
    return None


MOST = 10_000  # statements
DECLARES = ("export", "readonly", "local", "declare", "typeset")
SETS = ("unset", "read", "mapfile", "readarray", "eval", "getopts")  # what cannot be followed
INCLUDES = ("source", ".")
OUTPUTS = ("echo", "printf")


@dataclass(slots=True)
class Reading:
    """What was found: the words of the wanted ``command``, or of all ``commands`` on the way.

    ``ended``: the line with ``exit`` that was reached before. ``remarks``: what was decided here
    and might come out otherwise where the script runs. ``began``: the time that ``date`` tells, one
    for all, so that a name made of it several times is one name.
    """

    command: list[Text] | None = None
    commands: list[list[Text]] = field(default_factory=list)
    ended: int | None = None
    remarks: list[str] = field(default_factory=list)
    began: datetime = field(default_factory=datetime.now)


def read_script(
    body: Body,
    wanted: Callable[[Sequence[str]], bool],
    environment: Mapping[str, str] = os.environ,
) -> Reading:
    """Follow ``body`` up to the command for whose words ``wanted`` is true.

    Raises UserError where only running the script could tell what that command gets.
    """
    variables: Variables = {name: Text(value) for name, value in environment.items()}
    script = _Script(wanted, variables, Reading())
    with contextlib.suppress(_End):
        script.run(body)
    return script.reading


class _End(Exception):
    """The wanted command, or ``exit``, is reached."""


class _Return(Exception):
    """A function is left."""


class _Script:
    def __init__(
        self,
        wanted: Callable[[Sequence[str]], bool],
        variables: Variables,
        reading: Reading,
        captured: list[Text] | None = None,
    ) -> None:
        self.wanted, self.reading = wanted, reading
        self.expansion = Expansion(variables, self._substitute)
        self.functions: dict[str, Body] = {}
        self.steps = 0
        self.captured = captured  # the output so far, within $(...)

    def run(self, body: Body) -> bool | None:
        """Follow the statements; return the status of the last, None where it is not known."""
        status: bool | None = True
        for statement in body:
            status = self._statement(statement)
        return status

    def _statement(self, statement: Statement) -> bool | None:
        self.steps += 1
        if self.steps > MOST:
            raise UserError(f"the script takes more than {MOST} steps to read; {BASH_X}")
        match statement:
            case Simple():
                return self._simple(statement)
            case Chain(links=links):
                return self._chain(links)
            case Block(kind="|", body=parts):
                self.run(parts)
                return None
            case Block(kind="!", body=inner):
                status = self.run(inner)
                return None if status is None else not status
            case Block(kind="loop", body=body, line=line):
                self._skip(body, line, "how often the loop runs")
                return None
            case If():
                return self._if(statement)
            case Case():
                return self._case(statement)
            case Block(kind=kind, body=body):
                before = dict(self.expansion.variables)
                status = self.run(body)
                if kind == "(":
                    self.expansion.variables.clear()
                    self.expansion.variables.update(before)
                return status
            case Function(name=name, body=body):
                self.functions[name] = body
                return True

    def _chain(self, links: Sequence[tuple[str, Statement]]) -> bool | None:
        status: bool | None = None
        for joint, statement in links:
            if (joint, status) in (("&&", False), ("||", True)):
                continue
            if joint and status is None:
                line = next((simple.line for simple in simple_statements((statement,))), 0)
                self._skip((statement,), line, "whether the command before it succeeds")
                continue
            status = self._statement(statement)
        return status

    def _if(self, statement: If) -> bool | None:
        for index, (condition, body) in enumerate(statement.arms):
            status = self.run(condition)
            if status is None:
                rest = [inner for arm in statement.arms[index:] for inner in (*arm[0], *arm[1])]
                what = "whether the condition of 'if' holds"
                self._skip((*rest, *statement.otherwise), statement.line, what)
                return None
            if status:
                return self.run(body)
        return self.run(statement.otherwise)

    def _case(self, statement: Case) -> bool | None:
        found = self.expansion.text(statement.word)
        for patterns, body in statement.arms:
            texts = [self.expansion.text(pattern) for pattern in patterns]
            if found.unknown or any(text.unknown for text in texts):
                rest = tuple(inner for _, arm in statement.arms for inner in arm)
                self._skip(rest, statement.line, "which case applies")
                return None
            if any(fnmatchcase(found.value, text.value) for text in texts):
                return self.run(body)
        return True

    def _skip(self, body: Body, line: int, what: str) -> None:
        """Leave ``body`` out, which may run or not; refuse where that makes a difference."""
        known = (*DECLARES, *SETS, *INCLUDES, *self.functions)
        known += OUTPUTS if self.captured is not None else ()
        if (simple := _dependent(body, known)) is not None:
            raise UserError(
                f"line {line}: {what} is known only where the script runs, and line"
                f" {simple.line} depends on it; {BASH_X}"
            )

    def _simple(self, statement: Simple) -> bool | None:
        if statement.conditional:
            return holds([self.expansion.text(word) for word in statement.words], conditional=True)
        rest = list(statement.words)
        assigned: list[Word] = []
        while rest and assigns(rest[0]):
            assigned.append(rest.pop(0))
        if not rest:
            for word in assigned:
                self.expansion.assign(word)
            return True
        if rest[0].bare in DECLARES:
            for word in filter(assigns, rest[1:]):
                self.expansion.assign(word)
            return True
        return self._command([f for word in rest for f in self.expansion.fields(word)], statement)

    def _command(self, fields: list[Text], statement: Simple) -> bool | None:
        words = [text.value for text in fields]
        if self.captured is None and self.wanted(words):
            self.reading.command = fields
            raise _End
        match words:
            case ["[", *_, "]"]:
                return holds(fields[1:-1], conditional=False)
            case ["test", *_]:
                return holds(fields[1:], conditional=False)
            case ["exit", *_]:
                self.reading.ended = statement.line
                raise _End
            case ["return", *_]:
                raise _Return
            case ["unset", *names]:
                for name in names:
                    self.expansion.variables.pop(name, None)
                return True
            case [name, *_] if name in SETS:
                raise UserError(f"line {statement.line}: what '{name}' does is not read; {BASH_X}")
            case [name, file, *_] if name in INCLUDES:
                self.reading.remarks.append(
                    f"line {statement.line}: {name} {file} is not followed; what it sets counts as"
                    " not set"
                )
                return None
            case [name, *_] if name in self.functions:
                with contextlib.suppress(_Return):
                    return self.run(self.functions[name])
                return None
        return self._tell(fields, words)

    def _tell(self, fields: list[Text], words: list[str]) -> bool | None:
        """Follow a command that changes nothing here, as far as that is known without running."""
        if self.captured is not None and words[:1] == ["echo"]:
            self.captured += [text for text in fields[1:] if text.value != "-n"]
            return True
        match words:
            case ["true" | ":", *_] | []:
                return True
            case ["false", *_]:
                return False
            case ["python" | "python3", "-c", code] if match := _IMPORT.fullmatch(code):
                there = find_spec(match[1]) is not None
                said = f"{match[1]} {'is' if there else 'is not'} installed here"
                self.reading.remarks.append(f"`{' '.join(words)}`: {said}")
                return there
            case ["date", form] if form.startswith("+") and self.captured is not None:
                self.captured.append(Text(self.reading.began.strftime(form[1:])))
                return True
        if self.captured is not None:
            raise UserError(f"`{' '.join(words)}` is not run here; write its value out")
        self.reading.commands.append(fields)
        return None

    def _substitute(self, piece: Substitution) -> Text:
        """Return the output of ``$(...)`` where it is known without running it."""
        written = f"$({shown(piece.text)})"
        captured: list[Text] = []
        inner = _Script(
            self.wanted,
            dict(self.expansion.variables),
            Reading(remarks=self.reading.remarks, began=self.reading.began),
            captured,
        )
        try:
            inner.run(parse(piece.text))
        except (UserError, _End, _Return):
            return Text(
                written,
                unknown=f"{written} (line {piece.line}) is known only where the script runs; write"
                " its value out",
            )
        return join(captured, " ")


def _dependent(body: Body, known: Sequence[str]) -> Simple | None:
    """Return a command of ``body`` that sets something, is in ``known``, or starts a module."""
    for simple in simple_statements(body):
        first = next((word.bare for word in simple.words if not assigns(word)), None)
        sets = any(assigns(word) for word in simple.words)
        if sets or first in known or any(word.bare == "-m" for word in simple.words):
            return simple
    return None
