"""Statements of a shell script from its tokens: commands, assignments, branches, loops."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from rlcore.verl.shell.lexer import LiteralText, Operator, Token, Word, tokens
from schemas.errors import UserError

REDIRECTIONS = ("<", ">", ">>", "<<", "<<-", "<<<", ">&", "<&", "&>", "&>>", ">|")
_OPENING = {"if", "case", "for", "while", "until", "select", "{", "function", "!", "[["}
_CLOSING = {"then", "elif", "else", "fi", "esac", "do", "done", "}"}


@dataclass(frozen=True, slots=True)
class Simple:
    """Words of one command, assignments before it included; redirections are left out.

    ``conditional``: ``[[ ... ]]``, where the operators of the shell are words.
    """

    words: tuple[Word, ...]
    line: int
    conditional: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Statements with ``&&`` or ``||`` before all but the first, which has ``""``."""

    links: "tuple[tuple[str, Statement], ...]"


@dataclass(frozen=True, slots=True)
class Block:
    """Statements within ``{ ...; }``, within ``( ... )``, whose assignments end with it, after
    ``!``, of a pipe ``|``, or of a ``loop``: for, while, until or select."""

    kind: str
    body: "Body"
    line: int


@dataclass(frozen=True, slots=True)
class If:
    """Arms of (condition, body); ``otherwise``: the body after ``else``."""

    arms: "tuple[tuple[Body, Body], ...]"
    otherwise: "Body"
    line: int


@dataclass(frozen=True, slots=True)
class Case:
    """Arms of (patterns, body); the first that matches ``word`` is taken."""

    word: Word
    arms: "tuple[tuple[tuple[Word, ...], Body], ...]"
    line: int


@dataclass(frozen=True, slots=True)
class Function:
    """``name() { ...; }``."""

    name: str
    body: "Body"


Statement = Simple | Chain | Block | If | Case | Function
Body = tuple[Statement, ...]


def parse(text: str) -> Body:
    """Return the statements of ``text``. Raises UserError for text that is no shell script."""
    parser = _Parser(tokens(text))
    body = parser.body()
    parser.end()
    return body


def simple_statements(found: object) -> Iterator[Simple]:
    """Yield every simple command of a statement or of several, at any depth, in their order."""
    if isinstance(found, Simple):
        yield found
        return
    if isinstance(found, Chain | Block | If | Case | Function):
        found = tuple(getattr(found, part.name) for part in fields(found))
    for part in found if isinstance(found, tuple) else ():
        yield from simple_statements(part)


class _Parser:
    def __init__(self, found: list[Token]) -> None:
        self.tokens, self.at = found, 0

    def body(self, *closing: str) -> Body:
        """Read statements up to one of the reserved words or operators ``closing``."""
        statements: list[Statement] = []
        while True:
            while self._operator() in ("\n", ";", "&"):
                self.at += 1
            if self.at >= len(self.tokens) or self._next() in closing:
                return tuple(statements)
            statements.append(self._chain())

    def end(self) -> None:
        """Raise UserError unless all is read."""
        if self.at < len(self.tokens):
            raise self._unexpected()

    def _chain(self) -> Statement:
        links: list[tuple[str, Statement]] = [("", self._pipe())]
        while (operator := self._operator()) in ("&&", "||"):
            self.at += 1
            self._skip_lines()
            links.append((operator, self._pipe()))
        return links[0][1] if len(links) == 1 else Chain(tuple(links))

    def _pipe(self) -> Statement:
        line, parts = self._line(), [self._command()]
        while self._operator() == "|":
            self.at += 1
            if self._operator() == "&":
                self.at += 1
            self._skip_lines()
            parts.append(self._command())
        return parts[0] if len(parts) == 1 else Block("|", tuple(parts), line)

    def _command(self) -> Statement:
        found, line = self._next(), self._line()
        if found in _OPENING or found == "(":
            self.at += 1
            match found:
                case "!":
                    return Block("!", (self._command(),), line)
                case "if":
                    statement: Statement = self._if(line)
                case "case":
                    statement = self._case(line)
                case "{" | "(":
                    statement = Block(found, self._closed("}" if found == "{" else ")"), line)
                case "[[":
                    statement = self._conditional(line)
                case "function":
                    statement = self._function()
                case _:
                    # A condition, or a variable and words: none of it is followed.
                    statement = Block("loop", self._closed("do") + self._closed("done"), line)
            self._redirections()
            return statement
        if found in _CLOSING or not (found in REDIRECTIONS or isinstance(self._token(), Word)):
            raise self._unexpected()
        if self._operator(1) == "(" and self._operator(2) == ")":
            return self._function()
        return self._simple(line)

    def _simple(self, line: int) -> Simple:
        words: list[Word] = []
        while True:
            self._redirections()
            token = self._token()
            if not isinstance(token, Word):
                return Simple(tuple(words), line)
            words.append(token)
            self.at += 1

    def _redirections(self) -> None:
        while self._operator() in REDIRECTIONS:
            self.at += 1
            if not isinstance(self._token(), Word):
                raise self._unexpected()
            self.at += 1

    def _conditional(self, line: int) -> Simple:
        words: list[Word] = []
        while self._next() != "]]":
            token = self._token()
            if token is None:
                raise self._unexpected()
            words.append(
                token if isinstance(token, Word) else Word((LiteralText(token.text),), token.line)
            )
            self.at += 1
        self.at += 1
        return Simple(tuple(words), line, conditional=True)

    def _if(self, line: int) -> If:
        arms: list[tuple[Body, Body]] = []
        otherwise: Body = ()
        while True:
            arms.append((self._closed("then"), self.body("elif", "else", "fi")))
            found = self._next()
            if found is None:
                raise self._unexpected("fi")
            self.at += 1
            if found == "else":
                otherwise = self._closed("fi")
            if found != "elif":
                return If(tuple(arms), otherwise, line)

    def _case(self, line: int) -> Case:
        word = self._word()
        self._skip_lines()
        self._expect("in")
        arms: list[tuple[tuple[Word, ...], Body]] = []
        self._skip_lines()
        while self._next() != "esac":
            if self._operator() == "(":
                self.at += 1
            patterns = [self._word()]
            while self._operator() == "|":
                self.at += 1
                patterns.append(self._word())
            self._expect(")")
            arms.append((tuple(patterns), self.body(";;", "esac")))
            if self._operator() == ";;":
                self.at += 1
            self._skip_lines()
        self.at += 1
        return Case(word, tuple(arms), line)

    def _function(self) -> Function:
        name = self._word().bare or ""
        if self._operator() == "(":
            self.at += 1
            self._expect(")")
        self._skip_lines()
        body = self._command()
        return Function(name, body.body if isinstance(body, Block) else (body,))

    def _closed(self, closing: str) -> Body:
        body = self.body(closing)
        self._expect(closing)
        return body

    def _token(self, ahead: int = 0) -> Token | None:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else None

    def _operator(self, ahead: int = 0) -> str | None:
        token = self._token(ahead)
        return token.text if isinstance(token, Operator) else None

    def _next(self) -> str | None:
        """Return the next operator, or the next word as it is."""
        token = self._token()
        return token.bare if isinstance(token, Word) else self._operator()

    def _word(self) -> Word:
        token = self._token()
        if not isinstance(token, Word):
            raise self._unexpected()
        self.at += 1
        return token

    def _expect(self, text: str) -> None:
        if self._next() != text:
            raise self._unexpected(text)
        self.at += 1

    def _skip_lines(self) -> None:
        while self._operator() == "\n":
            self.at += 1

    def _line(self) -> int:
        token = self._token() or (self.tokens[-1] if self.tokens else None)
        return token.line if token else 1

    def _unexpected(self, wanted: str = "") -> UserError:
        shown = repr(self._next() or "its end").replace("'\\n'", "the line's end")
        return UserError(
            f"the command does not read as shell: line {self._line()} has {shown}"
            f"{f' where {wanted!r} belongs' if wanted else ' where a command belongs'};"
            " fix it, or give the output of `bash -x`"
        )
