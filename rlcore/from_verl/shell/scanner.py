"""Quotes and brackets of shell text: where they end, and what is in them."""

import re

from schemas.errors import UserError

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b"}
_ANSI = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)


class Scanner:
    """A place ``at`` in ``text``, with its ``line``; each method moves it behind what it reads."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text, self.at, self.line = text, 0, line

    def until(self, quote: str) -> str:
        """Return the text from the quote that is here to the next one."""
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise self.missing(quote)
        return self._take(end + 1)[1:-1]

    def escaped(self) -> str:
        r"""Return the text of the ``'...'`` that is here, with ``\n``, ``\'`` and such replaced."""
        match = _ANSI.match(self.text, self.at)
        if match is None:
            raise self.missing("'")
        self._take(match.end())
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), match[1], flags=re.DOTALL)

    def arithmetic(self) -> str:
        """Return the text within the ``((`` that is here."""
        start, depth = self.at + 2, 0
        for at in range(start, len(self.text)):
            if depth == 0 and self.text.startswith("))", at):
                return self._take(at + 2)[2:-2]
            depth += {"(": 1, ")": -1}.get(self.text[at], 0)
        raise self.missing("))")

    def parenthesis(self) -> str:
        """Return the text within the parenthesis that is here, quotes observed."""
        start, depth = self.at + 1, 0
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == "'":
                self.until("'")
                continue
            if character == '"':
                self._skip_quoted()
                continue
            depth += {"(": 1, ")": -1}.get(character, 0)
            self._take(self.at + (2 if character == "\\" else 1))
            if depth == 0:
                return self.text[start : self.at - 1]
        raise self.missing(")")

    def braces(self) -> str:
        """Return the ``{...}`` that is here, inner ones included."""
        depth = 0
        for at in range(self.at, len(self.text)):
            depth += {"{": 1, "}": -1}.get(self.text[at], 0)
            if depth == 0:
                return self._take(at + 1)
        raise self.missing("}")

    def close(self, bracket: str) -> None:
        """Move behind ``bracket``, which must be here."""
        if not self.text.startswith(bracket, self.at):
            raise self.missing(bracket)
        self.at += 1

    def missing(self, bracket: str) -> UserError:
        """Return the error for a quote or bracket that stays open."""
        return UserError(
            f"the command does not read as shell: {bracket} is missing after line {self.line};"
            " close the quotes and brackets"
        )

    def _skip_quoted(self) -> None:
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text.startswith("$(", self.at):
                self.at += 1
                self.parenthesis()
            else:
                self._take(self.at + (2 if self.text[self.at] == "\\" else 1))
        self.close('"')

    def _take(self, end: int) -> str:
        taken = self.text[self.at : end]
        self.at = end
        self.line += taken.count("\n")
        return taken
