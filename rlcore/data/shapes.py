"""Chat templates that are run once per shape of a chat instead of once per chat.

A shape is the roles of a chat, in order. A template is run on opaque contents, which end the run
where it does anything with them but write them, join them to other text, or strip them: what such a
run writes is what the template writes for every chat of the shape, contents aside. Templates that
look at contents (``'</think>' in content``), change them, capture what they have written (macros)
or read the clock have no shapes: each of their chats is rendered by itself.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from rlcore.models.tokenizer import renders_by_template

if TYPE_CHECKING:
    from jinja2 import Environment, Template

    from rlcore.models.tokenizer import ChatTokenizer

Steps = tuple[tuple[str, tuple[str | None, ...]], ...]  # methods of str, with their arguments
Part = str | tuple[int, Steps]  # literal text, or the content of a message after some steps

_MARK = secrets.token_hex(16)  # which no template writes by itself
_STRIPS = ("strip", "lstrip", "rstrip")
# What str has and an opaque content must not answer. TypeErrors of what is missing here end the run
# too, but Jinja takes some for an answer: of subscripts, iter(), len(), int() and float().
_OBSERVATIONS = (
    *("lt", "le", "gt", "ge", "eq", "ne", "hash", "bool", "len", "iter", "contains", "getitem"),
    *("str", "repr", "format", "int", "float", "index", "mod", "rmod", "mul", "rmul"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a template writes for chats of one shape: ``pattern % contents``.

    ``contents``: of each ``%s`` the message's position and what is done to its content.
    """

    pattern: str
    contents: tuple[tuple[int, Steps], ...]

    def fill(self, chat: Sequence[Mapping[str, str]]) -> str:
        """Return the text of ``chat``, which must be of this shape."""
        return self.pattern % tuple(
            _stepped(chat[at]["content"], steps) if steps else chat[at]["content"]
            for at, steps in self.contents
        )


def roles_of(chat: Sequence[Mapping[str, str]]) -> tuple[str, ...] | None:
    """Return the shape's key; None for a chat with more than roles and contents, which has none."""
    if any(tuple(message) != ("role", "content") for message in chat):
        return None
    return tuple(message["role"] for message in chat)


def shape_of(
    tokenizer: "ChatTokenizer",
    roles: Sequence[str],
    tools: Sequence[Mapping[str, Any]],
    *,
    open_turn: bool,
) -> Shape | None:
    """Return what the tokenizer's template writes for chats of ``roles``, proven for all contents;
    None where there is no such proof, or where the template refuses the shape."""
    if not renders_by_template(tokenizer):
        return None
    options: dict[str, Any] = {
        "tools": [dict(tool) for tool in tools] or None,
        "add_generation_prompt": open_turn,
    }
    template = _compiled(str(tokenizer.get_chat_template(None, options["tools"])))
    if template is None:
        return None
    opaque = [_Opaque([(at, ())]) for at in range(len(roles))]
    variables = {**tokenizer.special_tokens_map, "documents": None, **options}
    shape = _run(template, _chat(roles, opaque), variables)
    # The environment here is a copy of transformers': a sample says whether it still is one.
    sample = _chat(roles, [f" \n{secrets.token_hex(8)}\t " for _ in roles])
    if shape is None or shape.fill(sample) != tokenizer.apply_chat_template(
        sample, tokenize=False, **options
    ):
        return None
    return shape


class _Observed(BaseException):
    """A template looked at a content. No Exception: Jinja's tests take those for an answer."""


class _Opaque:
    """Text made of literals and contents that nobody can look at; a ``str`` to ``isinstance``."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Part]) -> None:
        object.__setattr__(self, "parts", parts)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return str
        parts = _parts(self)
        if name not in _STRIPS or len(parts) != 1 or isinstance(parts[0], str):
            raise _Observed
        at, steps = parts[0]
        return lambda chars=None: _Opaque([(at, (*steps, (name, (_plain(chars),))))])

    def __add__(self, other: Any) -> "_Opaque":
        return _Opaque([*_parts(self), *_parts_of(other)])

    def __radd__(self, other: Any) -> "_Opaque":
        return _Opaque([*_parts_of(other), *_parts(self)])


def _observed(*given: Any, **named: Any) -> NoReturn:
    raise _Observed


for _name in _OBSERVATIONS:
    setattr(_Opaque, f"__{_name}__", _observed)


def _parts(text: _Opaque) -> list[Part]:
    return object.__getattribute__(text, "parts")


def _parts_of(value: Any) -> list[Part]:
    if type(value) is _Opaque:
        return _parts(value)
    if type(value) is str:
        return [value]
    raise _Observed


def _plain(chars: Any) -> str | None:
    if chars is None or type(chars) is str:
        return chars
    raise _Observed


def _stepped(content: str, steps: Steps) -> str:
    for method, arguments in steps:
        content = getattr(content, method)(*arguments)
    return content


def _chat(roles: Sequence[str], contents: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": content} for role, content in zip(roles, contents, strict=True)
    ]


def _run(
    template: "Template", chat: list[dict[str, Any]], variables: Mapping[str, Any]
) -> Shape | None:
    """Return what ``template`` writes for ``chat``, whose contents are opaque."""
    try:
        text = template.render(messages=chat, **variables)
    except (_Observed, Exception):  # noqa: BLE001 - whatever it is, there is no proof
        return None
    pieces = text.split(_MARK)
    pattern = "%s".join(piece.replace("%", "%%") for piece in pieces[::2])
    return Shape(
        pattern, tuple((at, _tuples(steps)) for at, steps in map(json.loads, pieces[1::2]))
    )


def _tuples(steps: list[tuple[str, list[str | None]]]) -> Steps:
    return tuple((method, tuple(arguments)) for method, arguments in steps)


def _marked(value: Any) -> Any:
    """Return what is written for a value: contents as JSON between marks."""
    if type(value) is not _Opaque:
        return value
    return "".join(
        part if isinstance(part, str) else f"{_MARK}{json.dumps(part)}{_MARK}"
        for part in _parts(value)
    )


@lru_cache(maxsize=4)
def _compiled(source: str) -> "Template | None":
    """Return the template, compiled as transformers does it; None where it captures what it writes,
    which would make text of a content that can be looked at, or has parts unknown here."""
    from jinja2 import TemplateError, nodes

    plain = (nodes.Output, nodes.For, nodes.If, nodes.Assign, nodes.Break, nodes.Continue)
    environment = _environment()
    try:
        tree = environment.parse(source)
        for node in tree.find_all(nodes.Stmt):
            if not isinstance(node, plain) or (isinstance(node, nodes.For) and node.recursive):
                return None
        return environment.from_string(source)
    except (_Observed, TemplateError):  # Jinja runs what is constant while it compiles
        return None


def _environment() -> "Environment":
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        finalize=_marked,
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    # What differs from run to run, and identity, which says nothing of contents.
    environment.globals["strftime_now"] = environment.globals["lipsum"] = _observed
    environment.filters["random"] = environment.tests["sameas"] = _observed
    return environment
