"""Shell text as tokens: words made of pieces, operators, and line ends."""

import re
from dataclasses import dataclass
from itertools import groupby

from schemas.errors import UserError

OPERATORS = (
    *("&>>", "<<<", "<<-", "&&", "||", ";;", "&>", "<<", ">>", ">&", "<&", ">|"),
    *("(", ")", ";", "&", "|", "<", ">", "\n"),
)
_OPERATOR = re.compile("|".join(map(re.escape, OPERATORS)))
_BLANKS = re.compile(r"(?:[ \t]|\\\n|#[^\n]*)*")  # also joined lines and a comment
_ENDS = frozenset(" \t\n;&|<>()")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACES = re.compile(r"(#?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[([^\]{}]*)\])?")
_DEFAULTS = (":-", ":=", ":+", ":?", "-", "=", "+", "?")
_PLAIN = re.compile(r"[\w./:,=+\-%@\[\]*]+")  # ends no word and begins nothing
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b"}
_ANSI = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_CLOSING = {"(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class LiteralText:
    """Text that is taken literally."""

    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """``${name[index] operator operand}``; operator "#" is the length, "other" one not read."""

    name: str
    index: str | None = None
    operator: str = ""
    operand: "Word | None" = None
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``$((body))``."""

    body: "Word"


@dataclass(frozen=True, slots=True)
class Substitution:
    """``$(text)`` or the same in backticks."""

    text: str
    line: int
    quoted: bool = False


Piece = LiteralText | Variable | Arithmetic | Substitution


@dataclass(frozen=True, slots=True)
class Word:
    """Pieces without a blank between them; ``array`` holds the elements of ``NAME=( ... )``."""

    pieces: tuple[Piece, ...]
    line: int
    array: "tuple[Word, ...] | None" = None

    @property
    def bare(self) -> str | None:
        """The text of a word that is one unquoted literal; else None."""
        match self.pieces:
            case (LiteralText(text=text, quoted=False),) if self.array is None:
                return text
        return None


@dataclass(frozen=True, slots=True)
class Operator:
    """One of ``OPERATORS``."""

    text: str
    line: int


Token = Word | Operator


def tokens(text: str) -> list[Token]:
    """Return the tokens of shell ``text``. Raises UserError where a quote or bracket stays open."""
    return _Lexer(re.sub(r"\\[ \t\r]+\n", "\\\n", text.replace("\r\n", "\n"))).tokens()


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Return ``pieces`` with literals of one kind that follow each other as one."""
    joined: list[Piece] = []
    for quoted, group in groupby(
        pieces, lambda piece: piece.quoted if isinstance(piece, LiteralText) else None
    ):
        if quoted is None:
            joined += group
        else:
            text = "".join(piece.text for piece in group if isinstance(piece, LiteralText))
            joined.append(LiteralText(text, quoted))
    return joined


class _Lexer:
    """A place ``at`` in ``text``, with its ``line``; each method moves it behind what it reads."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text, self.at, self.line = text, 0, line

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        waiting: list[str] = []  # delimiters of here-documents that begin at the line's end
        while self._skip_blanks():
            operator = _OPERATOR.match(self.text, self.at)
            if operator is None:
                word = self.word()
                if self.text[self.at : self.at + 1] in ("<", ">") and (word.bare or "").isdigit():
                    continue  # the number of the file that is redirected
                if found and isinstance(found[-1], Operator) and found[-1].text in ("<<", "<<-"):
                    waiting.append(
                        "".join(p.text for p in word.pieces if isinstance(p, LiteralText))
                    )
                found.append(word)
                continue
            found.append(Operator(operator[0], self.line))
            self._take(operator.end())
            if operator[0] == "\n":
                for delimiter in waiting:
                    self._skip_document(delimiter)
                waiting = []
        return found

    def word(self) -> Word:
        """Read one word, which begins here."""
        start, line = self.at, self.line
        pieces = self._pieces(_ENDS)
        begun = self.text[start : self.at]
        if self.text[self.at : self.at + 1] == "(" and _ARRAY.fullmatch(begun):
            return Word(tuple(pieces), line, self._array())
        return Word(tuple(pieces), line)

    def _array(self) -> tuple[Word, ...]:
        self.at += 1
        elements: list[Word] = []
        while True:
            while self._skip_blanks() and self.text[self.at] == "\n":
                self.at, self.line = self.at + 1, self.line + 1
            if self.at >= len(self.text):
                raise self._missing(")")
            if self.text[self.at] == ")":
                self.at += 1
                return tuple(elements)
            if self.text[self.at] in _ENDS:
                raise UserError(
                    f"line {self.line}: '{self.text[self.at]}' is in an array, which holds"
                    " words only; quote it"
                )
            elements.append(self.word())

    def _pieces(self, ends: frozenset[str], *, quoted: bool = False) -> list[Piece]:
        """Read pieces up to one of ``ends``; ``quoted``: within double quotes."""
        pieces: list[Piece] = []
        while self.at < len(self.text) and self.text[self.at] not in ends:
            character = self.text[self.at]
            if character == "\\":
                pieces.append(self._escape(quoted))
            elif character == "'" and not quoted:
                pieces.append(LiteralText(self._until("'"), True))
            elif character == '"' and '"' not in ends:
                self.at += 1
                inner = self._pieces(frozenset('"'), quoted=True)
                self._close('"')
                pieces += inner or [LiteralText("", True)]
            elif self.text.startswith("$'", self.at) and not quoted:
                self.at += 1
                pieces.append(LiteralText(self._escaped(), True))
            elif character == "$":
                pieces.append(self._dollar(quoted))
            elif character == "`":
                line = self.line
                pieces.append(Substitution(self._until("`"), line, quoted))
            else:
                plain = _PLAIN.match(self.text, self.at)
                text = self._take(plain.end() if plain else self.at + 1)
                pieces.append(LiteralText(text, quoted))
        return _joined(pieces)

    def _escape(self, quoted: bool) -> LiteralText:
        following = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if following == "\n":
            self.line += 1
            return LiteralText("", quoted)
        kept = "\\" if quoted and following not in '$`"\\' else ""
        return LiteralText(kept + following, True)

    def _dollar(self, quoted: bool) -> Piece:
        self.at += 1
        if self.text.startswith("((", self.at):
            line, inner = self.line, self._bracketed()
            if not inner.endswith("))"):
                raise self._missing("))")
            body = _Lexer(inner[2:-2], line)
            return Arithmetic(Word(tuple(body._pieces(frozenset(), quoted=True)), self.line))
        if self.text.startswith("(", self.at):
            line = self.line
            return Substitution(self._bracketed()[1:-1], line, quoted)
        if self.text.startswith("{", self.at):
            return self._braces(quoted)
        if match := _NAME.match(self.text, self.at):
            self.at = match.end()
            return Variable(match[0], quoted=quoted)
        return LiteralText("$", quoted)

    def _braces(self, quoted: bool) -> Piece:
        """Read ``${...}``. ``${a.b}`` and ``${name:a.b}`` are Hydra's and taken literally."""
        start = self.at - 1
        match = _BRACES.match(self.text, self.at + 1)
        if match is not None:
            length, name, index = match.groups()
            rest = match.end()
            if self.text.startswith("}", rest):
                self.at = rest + 1
                return Variable(name, index, "#" if length else "", quoted=quoted)
            operator = next((o for o in _DEFAULTS if self.text.startswith(o, rest)), None)
            if operator is not None and not length:
                self.at = rest + len(operator)
                line = self.line
                operand = Word(tuple(self._pieces(frozenset("}"), quoted=quoted)), line)
                self._close("}")
                return Variable(name, index, operator, operand, quoted)
        self._bracketed()
        if match is not None and self.text[match.end()] in "%#/^,@:!":
            return Variable(match[2], match[3], "other", quoted=quoted)
        return LiteralText(self.text[start : self.at], quoted)

    def _skip_blanks(self) -> bool:
        """Move behind blanks; return whether text is left."""
        blanks = _BLANKS.match(self.text, self.at)
        self._take(blanks.end() if blanks else self.at)
        return self.at < len(self.text)

    def _skip_document(self, delimiter: str) -> None:
        end = re.compile(rf"^\t*+{re.escape(delimiter)}\t*$", re.MULTILINE)
        found = end.search(self.text, self.at)
        self._take(found.end() + 1 if found else len(self.text))

    def _until(self, quote: str) -> str:
        """Return the text from the quote that is here to the next one."""
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise self._missing(quote)
        return self._take(end + 1)[1:-1]

    def _escaped(self) -> str:
        r"""Return the text of the ``'...'`` that is here, with ``\n``, ``\'`` and such replaced."""
        match = _ANSI.match(self.text, self.at)
        if match is None:
            raise self._missing("'")
        self._take(match.end())
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), match[1], flags=re.DOTALL)

    def _bracketed(self) -> str:
        """Return the text from the bracket that is here to its own end; quotes within parentheses
        are observed."""
        start, opening, depth = self.at, self.text[self.at], 0
        while self.at < len(self.text):
            character = self.text[self.at]
            if opening == "(" and character == "'":
                self._until("'")
            elif opening == "(" and character == '"':
                self.at += 1
                self._pieces(frozenset('"'), quoted=True)
                self._close('"')
            else:
                depth += {opening: 1, _CLOSING[opening]: -1}.get(character, 0)
                self._take(self.at + (2 if character == "\\" else 1))
                if depth == 0:
                    return self.text[start : self.at]
        raise self._missing(_CLOSING[opening])

    def _close(self, bracket: str) -> None:
        """Move behind ``bracket``, which must be here."""
        if not self.text.startswith(bracket, self.at):
            raise self._missing(bracket)
        self.at += 1

    def _missing(self, bracket: str) -> UserError:
        """Return the error for a quote or bracket that stays open."""
        return UserError(
            f"the command does not read as shell: {bracket} is missing after line {self.line};"
            " close the quotes and brackets"
        )

    def _take(self, end: int) -> str:
        taken = self.text[self.at : end]
        self.at = end
        self.line += taken.count("\n")
        return taken
